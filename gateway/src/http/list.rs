//! Lists as `OpenAI`'s clients page through them: `limit`, `after`, `order`.

use http::{Response, StatusCode};
use serde_json::{Value, json as value};

use super::body::Body;
use super::reply::json;
use super::route::Call;
use crate::error::{ApiError, ApiResult};

/// Which part of a list is asked for.
pub(crate) struct Page {
    pub(crate) limit: u64,
    /// The id after which it begins.
    pub(crate) after: Option<String>,
    /// Newest first.
    pub(crate) descending: bool,
    filters: Vec<(String, String)>,
}

impl Page {
    pub(crate) fn read(call: &Call, filters: &[&str], default: u64, most: u64) -> ApiResult<Self> {
        let known: Vec<&str> = ["limit", "after", "order"]
            .into_iter()
            .chain(filters.iter().copied())
            .collect();
        let mut page = Self {
            limit: default,
            after: None,
            descending: true,
            filters: Vec::new(),
        };
        for (name, text) in call.query(&known)? {
            match (name.as_str(), text.as_str()) {
                ("after", _) => page.after = Some(text),
                ("limit", number) => {
                    let limit = number
                        .parse()
                        .ok()
                        .filter(|limit| (1..=most).contains(limit));
                    page.limit = limit.ok_or_else(|| {
                        let what = format!("`limit` must be a number from 1 to {most}");
                        ApiError::invalid("limit", what)
                    })?;
                }
                ("order", "asc") => page.descending = false,
                ("order", "desc") => page.descending = true,
                ("order", _) => {
                    return Err(ApiError::invalid("order", "`order` must be asc or desc"));
                }
                _ => page.filters.push((name, text)),
            }
        }
        Ok(page)
    }

    pub(crate) fn filter(&self, name: &str) -> Option<&str> {
        let found = self.filters.iter().find(|(given, _)| given == name);
        found.map(|(_, text)| text.as_str())
    }

    /// Names to look between, from a cursor on (empty: from the beginning).
    pub(crate) fn bounds(&self, cursor: &str) -> (String, Option<String>) {
        match (self.descending, cursor) {
            (true, "") => (String::new(), None),
            (true, cursor) => (String::new(), Some(cursor.to_owned())),
            (false, cursor) => (cursor.to_owned(), None),
        }
    }
}

/// A part of a list, and whether there is more of it.
pub(crate) fn answer(data: &[Value], more: bool) -> Response<Body> {
    let id_of = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let list = value!({
        "object": "list", "first_id": id_of(data.first()), "last_id": id_of(data.last()), "has_more": more, "data": data,
    });
    json(StatusCode::OK, &list)
}
