//! The signed statement: an in-toto Statement v1 whose predicate is a model signature v1.0.
//!
//! Format: `https://model_signing/signature/v1.0` of the `OpenSSF` Model Signing specification. The subject's digest is SHA-256 over the
//! raw digests of the resources, in the order in which they are listed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::canonical::to_canonical;
use crate::path::FilePath;
use crate::{Digest, VerifyError};

/// Most files an artifact may have: sharded weights of the largest open models have a few hundred.
pub const MAX_FILES: usize = 4096;

const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE: &str = "https://model_signing/signature/v1.0";
/// What the format leaves out by default, beside the signature itself.
const GIT_PATHS: [&str; 4] = [".git", ".gitattributes", ".github", ".gitignore"];

/// What was signed: a digest for every file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Name of the signed directory; informative only.
    pub subject: String,
    /// Every signed file.
    pub files: BTreeMap<FilePath, Digest>,
    /// Paths that the signer left out, with everything below them. Nothing under them is ever served.
    pub ignored: Vec<FilePath>,
}

#[derive(Serialize, Deserialize)]
struct StatementJson {
    #[serde(rename = "_type")]
    statement_type: String,
    subject: Vec<SubjectJson>,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    predicate: PredicateJson,
}

#[derive(Serialize, Deserialize)]
struct SubjectJson {
    name: String,
    digest: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct PredicateJson {
    serialization: SerializationJson,
    resources: Vec<ResourceJson>,
}

#[derive(Serialize, Deserialize)]
struct SerializationJson {
    method: String,
    hash_type: String,
    allow_symlinks: bool,
    #[serde(default)]
    ignore_paths: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct ResourceJson {
    name: String,
    algorithm: String,
    digest: String,
}

impl Statement {
    /// A statement over `files` that leaves out the signature file and what belongs to git.
    pub fn new(
        subject: &str,
        files: BTreeMap<FilePath, Digest>,
        signature_file: Option<&FilePath>,
    ) -> Self {
        let mut ignored: Vec<FilePath> = GIT_PATHS
            .iter()
            .map(|p| p.parse().expect("the constant is a valid path"))
            .collect();
        ignored.extend(signature_file.cloned());
        ignored.sort();
        Self {
            subject: subject.to_owned(),
            files,
            ignored,
        }
    }

    /// The digest over all files: the subject's digest.
    pub fn root_digest(&self) -> Digest {
        root_digest(self.files.values())
    }

    /// The payload bytes to sign.
    pub fn to_payload(&self) -> Vec<u8> {
        let resource = |(path, digest): (&FilePath, &Digest)| ResourceJson {
            name: path.to_string(),
            algorithm: "sha256".to_owned(),
            digest: digest.to_hex(),
        };
        to_canonical(&StatementJson {
            statement_type: STATEMENT_TYPE.to_owned(),
            subject: vec![SubjectJson {
                name: self.subject.clone(),
                digest: BTreeMap::from([("sha256".to_owned(), self.root_digest().to_hex())]),
            }],
            predicate_type: PREDICATE_TYPE.to_owned(),
            predicate: PredicateJson {
                serialization: SerializationJson {
                    method: "files".to_owned(),
                    hash_type: "sha256".to_owned(),
                    allow_symlinks: false,
                    ignore_paths: self.ignored.iter().map(ToString::to_string).collect(),
                },
                resources: self.files.iter().map(resource).collect(),
            },
        })
        .expect("the statement holds only strings, lists and maps")
    }

    /// Reads a payload whose signature was already verified. Unknown fields are skipped, as version 1.0 of the format asks.
    ///
    /// # Errors
    /// When the payload is not such a statement, contradicts itself, or names a path that could leave the artifact.
    pub fn from_payload(payload: &[u8]) -> Result<Self, VerifyError> {
        let invalid = |cause: String| VerifyError::StatementInvalid { cause };
        let unsupported = |what: String| VerifyError::SignatureUnsupported { what };
        let json: StatementJson =
            serde_json::from_slice(payload).map_err(|e| invalid(e.to_string()))?;
        if json.statement_type != STATEMENT_TYPE {
            return Err(unsupported(format!(
                "the statement type {:?}",
                json.statement_type
            )));
        }
        if json.predicate_type != PREDICATE_TYPE {
            return Err(unsupported(format!(
                "the predicate type {:?}",
                json.predicate_type
            )));
        }
        let serialization = json.predicate.serialization;
        if serialization.method != "files" || serialization.hash_type != "sha256" {
            return Err(unsupported(format!(
                "the method {:?} with the hash {:?}",
                serialization.method, serialization.hash_type
            )));
        }
        let [subject] = json.subject.as_slice() else {
            return Err(invalid(format!(
                "it has {} subjects instead of one",
                json.subject.len()
            )));
        };
        let resources = parse_resources(&json.predicate.resources)?;
        let root = root_digest(resources.iter().map(|(_, digest)| digest)).to_hex();
        if subject.digest.get("sha256") != Some(&root) {
            return Err(invalid(
                "the subject's digest is not the digest over the files".to_owned(),
            ));
        }
        let ignored = serialization
            .ignore_paths
            .iter()
            .map(|path| path.parse())
            .collect::<Result<_, _>>()?;
        let count = resources.len();
        let files: BTreeMap<_, _> = resources.into_iter().collect();
        if files.len() != count {
            return Err(invalid("it lists a file twice".to_owned()));
        }
        Ok(Self {
            subject: subject.name.clone(),
            files,
            ignored,
        })
    }
}

fn parse_resources(resources: &[ResourceJson]) -> Result<Vec<(FilePath, Digest)>, VerifyError> {
    if resources.is_empty() {
        return Err(VerifyError::StatementInvalid {
            cause: "it covers no file".to_owned(),
        });
    }
    if resources.len() > MAX_FILES {
        return Err(VerifyError::TooManyFiles { limit: MAX_FILES });
    }
    resources
        .iter()
        .map(|resource| {
            if resource.algorithm != "sha256" {
                return Err(VerifyError::SignatureUnsupported {
                    what: format!("the hash {:?}", resource.algorithm),
                });
            }
            let digest = resource
                .digest
                .parse()
                .map_err(|e| VerifyError::StatementInvalid {
                    cause: format!("{:?}: {e}", resource.name),
                })?;
            Ok((resource.name.parse()?, digest))
        })
        .collect()
}

fn root_digest<'a>(digests: impl Iterator<Item = &'a Digest>) -> Digest {
    let mut hasher = Sha256::new();
    for digest in digests {
        hasher.update(digest.as_bytes());
    }
    Digest::from_bytes(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn statement() -> Statement {
        let files = BTreeMap::from([
            ("a/b".parse().unwrap(), Digest::of(b"1")),
            ("a.b".parse().unwrap(), Digest::of(b"2")),
        ]);
        Statement::new("m", files, Some(&"model.sig".parse().unwrap()))
    }

    #[test]
    fn reading_what_was_written_gives_the_statement_back() {
        let statement = statement();
        assert_eq!(
            Statement::from_payload(&statement.to_payload()).unwrap(),
            statement
        );
    }

    #[test]
    fn what_contradicts_the_format_is_refused_by_name() {
        type Edit = fn(&mut Value);
        let edits: [(&str, Edit, &str); 11] = [
            ("type", |v| v["_type"] = json!("x"), "SignatureUnsupported"),
            (
                "predicate type",
                |v| v["predicateType"] = json!("https://model_signing/Digests/v0.1"),
                "SignatureUnsupported",
            ),
            (
                "method",
                |v| v["predicate"]["serialization"]["method"] = json!("shards"),
                "SignatureUnsupported",
            ),
            (
                "hash",
                |v| v["predicate"]["serialization"]["hash_type"] = json!("blake3"),
                "SignatureUnsupported",
            ),
            (
                "resource hash",
                |v| v["predicate"]["resources"][0]["algorithm"] = json!("blake2"),
                "SignatureUnsupported",
            ),
            (
                "two subjects",
                |v| v["subject"] = json!([v["subject"][0], v["subject"][0]]),
                "StatementInvalid",
            ),
            (
                "root digest",
                |v| v["subject"][0]["digest"]["sha256"] = json!(Digest::of(b"").to_hex()),
                "StatementInvalid",
            ),
            (
                "order",
                |v| {
                    v["predicate"]["resources"]
                        .as_array_mut()
                        .unwrap()
                        .reverse();
                },
                "StatementInvalid",
            ),
            (
                "no files",
                |v| v["predicate"]["resources"] = json!([]),
                "StatementInvalid",
            ),
            (
                "escape",
                |v| v["predicate"]["resources"][0]["name"] = json!("../x"),
                "PathInvalid",
            ),
            (
                "ignore all",
                |v| v["predicate"]["serialization"]["ignore_paths"] = json!(["."]),
                "PathInvalid",
            ),
        ];
        for (name, edit, reason) in edits {
            let mut value: Value = serde_json::from_slice(&statement().to_payload()).unwrap();
            edit(&mut value);
            let error = Statement::from_payload(value.to_string().as_bytes()).expect_err(name);
            assert_eq!(error.reason(), reason, "{name}: {error}");
        }
    }

    #[test]
    fn a_file_listed_twice_is_refused_even_with_a_consistent_digest() {
        let mut value: Value = serde_json::from_slice(&statement().to_payload()).unwrap();
        let first = value["predicate"]["resources"][0].clone();
        value["predicate"]["resources"] = json!([first, first]);
        let digest: Digest = first["digest"].as_str().unwrap().parse().unwrap();
        value["subject"][0]["digest"]["sha256"] =
            json!(root_digest([digest, digest].iter()).to_hex());
        assert_eq!(
            Statement::from_payload(value.to_string().as_bytes())
                .unwrap_err()
                .reason(),
            "StatementInvalid"
        );
    }
}
