//! How a registry is spoken to: a manifest or bytes of a blob are asked for, and if it wants to know by whom, it is told as it wishes.

use oci_client::Reference;
use oci_client::secrets::RegistryAuth;
use parking_lot::Mutex;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, RANGE, WWW_AUTHENTICATE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};

use super::challenge::{Challenge, Token};
use crate::FetchError;
use crate::client::unreachable;
use crate::error::words;
use crate::source::web;

/// What is said to the registry with each question.
#[derive(Clone)]
enum Word {
    Basic(String, String),
    Bearer(String),
}

/// One repository, with what it is told of who asks.
pub(super) struct Talk {
    client: Client,
    registry: String,
    repository: String,
    auth: RegistryAuth,
    word: Mutex<Option<Word>>,
}

impl Talk {
    pub(super) fn new(
        client: &Client,
        reference: &Reference,
        auth: RegistryAuth,
        plain_http: &[String],
    ) -> Self {
        let host = reference.resolve_registry();
        let is_plain = plain_http.iter().any(|plain| plain == host);
        let scheme = if is_plain { "http" } else { "https" };
        let word = match &auth {
            RegistryAuth::Bearer(token) => Some(Word::Bearer(token.clone())),
            _ => None,
        };
        Self {
            client: client.clone(),
            registry: format!("{scheme}://{host}"),
            repository: reference.repository().to_owned(),
            auth,
            word: Mutex::new(word),
        }
    }

    /// What the registry answers to a question that it does not refuse.
    pub(super) async fn ask(
        &self,
        place: &str,
        what: &str,
        headers: &HeaderMap,
    ) -> Result<Response, FetchError> {
        let mut response = self.send(place, what, headers).await?;
        if response.status() == StatusCode::UNAUTHORIZED
            && let Some(word) = self.word_for(place, response.headers()).await?
        {
            *self.word.lock() = Some(word);
            response = self.send(place, what, headers).await?;
        }
        if response.status().is_success() {
            return Ok(response);
        }
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.unwrap_or_default();
        let said = words(&String::from_utf8_lossy(&body));
        Err(web::refused(place.to_owned(), status, &headers, &said))
    }

    async fn send(
        &self,
        place: &str,
        what: &str,
        headers: &HeaderMap,
    ) -> Result<Response, FetchError> {
        let address = format!("{}/v2/{}/{what}", self.registry, self.repository);
        let request = self.client.get(address).headers(headers.clone());
        let word = self.word.lock().clone();
        let request = match word {
            Some(word) => told(request, &word),
            None => request,
        };
        let sent = request.header(ACCEPT_ENCODING, "identity").send().await;
        sent.map_err(|error| unreachable(place, error))
    }

    /// What the registry wants to be told; nothing where there is nothing to tell. It may be another one each time: tokens end.
    async fn word_for(&self, place: &str, headers: &HeaderMap) -> Result<Option<Word>, FetchError> {
        let header = headers.get(WWW_AUTHENTICATE);
        let challenge = header
            .and_then(|header| header.to_str().ok())
            .and_then(Challenge::read);
        match (challenge, &self.auth) {
            (Some(Challenge::Basic), RegistryAuth::Basic(user, password)) => {
                Ok(Some(Word::Basic(user.clone(), password.clone())))
            }
            (Some(Challenge::Bearer { realm, service }), auth) if !is_token(auth) => self
                .token(place, &realm, service.as_deref())
                .await
                .map(|token| Some(Word::Bearer(token))),
            _ => Ok(None),
        }
    }

    /// A token of the server that the registry names.
    async fn token(
        &self,
        place: &str,
        realm: &str,
        service: Option<&str>,
    ) -> Result<String, FetchError> {
        let refused = |cause: String| FetchError::Refused {
            place: place.to_owned(),
            cause,
        };
        let mut address = Url::parse(realm).map_err(|error| {
            refused(format!(
                "the registry names no server of tokens: {realm:?}: {error}"
            ))
        })?;
        if self.registry.starts_with("https:") && address.scheme() != "https" {
            let cause =
                format!("the registry wants credentials to be sent without TLS to {realm:?}");
            return Err(refused(cause));
        }
        let scope = format!("repository:{}:pull", self.repository);
        address.query_pairs_mut().append_pair("scope", &scope);
        if let Some(service) = service {
            address.query_pairs_mut().append_pair("service", service);
        }
        let mut request = self.client.get(address).header(ACCEPT, "application/json");
        if let RegistryAuth::Basic(user, password) = &self.auth {
            request = request.basic_auth(user, Some(password));
        }
        let response = request
            .send()
            .await
            .map_err(|error| unreachable(place, error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response
            .bytes()
            .await
            .map_err(|error| unreachable(place, error))?;
        if !status.is_success() {
            let said = words(&String::from_utf8_lossy(&body));
            let said = format!("the server of tokens {realm}: {said}");
            return Err(web::refused(place.to_owned(), status, &headers, &said));
        }
        // What came is a secret, or may be.
        Token::read(&body)
            .ok_or_else(|| refused(format!("the server of tokens {realm} sends none")))
    }
}

const fn is_token(auth: &RegistryAuth) -> bool {
    matches!(auth, RegistryAuth::Bearer(_))
}

fn told(request: RequestBuilder, word: &Word) -> RequestBuilder {
    match word {
        Word::Basic(user, password) => request.basic_auth(user, Some(password)),
        Word::Bearer(token) => request.bearer_auth(token),
    }
}

/// Asks for bytes from one place on, to the end or so many.
pub(super) fn range(from: u64, length: Option<u64>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let last = length.map(|length| (from + length).saturating_sub(1).to_string());
    let text = format!("bytes={from}-{}", last.unwrap_or_default());
    if let Ok(value) = text.parse() {
        headers.insert(RANGE, value);
    }
    headers
}
