//! A web server on loopback that misbehaves as it is told, one connection a request.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use weir_fetch::{Cache, FetchError, Fetched, Fetcher, Meter, Request, Settings};
use weir_manifest::{Digest, FileEntry};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// The connection is cut after so many bytes of a body.
    Cut(usize),
    /// The same, and ranges are ignored: the whole file comes again.
    CutWithoutRanges(usize),
    /// A length that is so many bytes longer than the file.
    Longer(usize),
    /// Bytes beyond the file, without saying so before.
    Overlong,
    /// The byte at this place is another one.
    Wrong(usize),
    /// This status.
    Status(u16),
}

/// The server; it serves until the test's process ends.
pub(crate) struct Server {
    pub(crate) host: String,
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    fault: Arc<Mutex<(Fault, u32)>>,
    requests: Arc<Mutex<Vec<String>>>,
    sent: Arc<AtomicU64>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            host: listener.local_addr().unwrap().to_string(),
            files: Arc::default(),
            fault: Arc::new(Mutex::new((Fault::None, 0))),
            requests: Arc::default(),
            sent: Arc::default(),
        };
        let (files, fault, requests, sent) = (
            server.files.clone(),
            server.fault.clone(),
            server.requests.clone(),
            server.sent.clone(),
        );
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (files, fault, requests, sent) =
                    (files.clone(), fault.clone(), requests.clone(), sent.clone());
                std::thread::spawn(move || answer(stream, &files, &fault, &requests, &sent));
            }
        });
        server
    }

    /// Puts a file there; what the manifest would say of it.
    pub(crate) fn put(&self, path: &str, content: Vec<u8>) -> FileEntry {
        let entry = FileEntry {
            path: path.parse().unwrap(),
            sha256: Digest::of(&content),
            size: content.len() as u64,
        };
        self.files
            .lock()
            .unwrap()
            .insert(format!("/model/{path}"), content);
        entry
    }

    /// The next so many answers go wrong.
    pub(crate) fn fail(&self, fault: Fault, answers: u32) {
        *self.fault.lock().unwrap() = (fault, answers);
    }

    /// Every request's path and range.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// Bytes of bodies.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn uri(&self) -> String {
        format!("https://{}/model", self.host)
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            plain_http: vec![self.host.clone()],
            ..Settings::default()
        }
    }

    pub(crate) fn fetcher(&self, root: &Path) -> Fetcher {
        Fetcher::new(Cache::open(root, None).unwrap(), self.settings()).unwrap()
    }

    /// Fetches into a cache.
    pub(crate) fn fetch(
        &self,
        fetcher: &Fetcher,
        files: &[FileEntry],
    ) -> Result<Fetched, FetchError> {
        run(fetcher.fetch(&request(&self.uri(), files), &Meter::default()))
    }
}

pub(crate) fn request<'a>(uri: &'a str, files: &'a [FileEntry]) -> Request<'a> {
    Request {
        uri,
        name: "model",
        files,
        signature: None,
    }
}

pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

/// Content in which no two pieces are equal.
pub(crate) fn content(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|index| (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect()
}

fn answer(
    mut stream: TcpStream,
    files: &Mutex<BTreeMap<String, Vec<u8>>>,
    fault: &Mutex<(Fault, u32)>,
    requests: &Mutex<Vec<String>>,
    sent: &AtomicU64,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut range) = (String::new(), None);
    reader.read_line(&mut line).unwrap_or(0);
    let path = line
        .split_whitespace()
        .nth(1)
        .unwrap_or_default()
        .to_owned();
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header).unwrap_or(0) <= 2 {
            break;
        }
        let header = header.to_lowercase();
        if let Some(text) = header.strip_prefix("range: bytes=") {
            range = text.trim().trim_end_matches('-').parse::<usize>().ok();
        }
    }
    requests
        .lock()
        .unwrap()
        .push(format!("{path} {}", range.unwrap_or(0)));
    let fault = {
        let mut fault = fault.lock().unwrap();
        if fault.1 == 0 {
            Fault::None
        } else {
            fault.1 -= 1;
            fault.0
        }
    };
    let found = files.lock().unwrap().get(&path).cloned();
    let Some(mut body) = found else {
        let _ = stream
            .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        return;
    };
    let (size, mut said) = (body.len(), body.len());
    let mut begin = range.unwrap_or(0).min(size);
    let (mut cut, mut has_length) = (usize::MAX, true);
    match fault {
        Fault::None => {}
        Fault::Cut(after) => cut = after,
        Fault::CutWithoutRanges(after) => (cut, begin) = (after, 0),
        Fault::Longer(more) => said += more,
        Fault::Overlong => {
            body.push(0);
            has_length = false;
        }
        Fault::Wrong(at) => body[at] ^= 1,
        Fault::Status(status) => {
            let _ = write!(
                stream,
                "HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            return;
        }
    }
    let head = if begin > 0 {
        format!(
            "206 Partial Content\r\ncontent-range: bytes {begin}-{}/{said}\r\ncontent-length: {}",
            said - 1,
            said - begin
        )
    } else if has_length {
        format!("200 OK\r\ncontent-length: {said}")
    } else {
        "200 OK".to_owned()
    };
    let _ = write!(stream, "HTTP/1.1 {head}\r\nconnection: close\r\n\r\n");
    for piece in body[begin..].chunks(16 << 10) {
        let piece = &piece[..piece.len().min(cut)];
        if piece.is_empty() || stream.write_all(piece).is_err() {
            return;
        }
        sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        cut = cut.saturating_sub(piece.len());
    }
}
