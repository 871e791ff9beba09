//! The page for monitoring: GET and HEAD of a few paths. Its clients are few, as the oldest is closed for one too
//! many, and each is closed after an answer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use super::acceptor::ClientSocket;
use super::closing::Closing;
use super::core::{ProxyClient, ServeCore, Step};
use super::http::{HeadScan, answer};
use super::news::{ClientToken, News};
use super::options::{InfoPage, PageMaker};
use super::report::{RefusalReason, ServiceName};
use super::socket::{Peeked, READABLE, consume, peek};

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest head.
const LONGEST: usize = 8 << 10;

/// A client of the info page.
pub(crate) struct InfoClient {
    /// `None` once it was answered.
    fd: Option<OwnedFd>,
    pages: PageMaker,
    is_head: bool,
    is_asking: bool,
    until: Instant,
}

impl InfoClient {
    pub(crate) fn new(arrival: ClientSocket, pages: &PageMaker, core: &ServeCore) -> Self {
        Self {
            fd: Some(arrival.fd),
            pages: Arc::clone(pages),
            is_head: false,
            is_asking: false,
            until: core.now + PATIENCE,
        }
    }

    fn answer(&mut self, core: &ServeCore, mut words: Vec<u8>) -> Step {
        if self.is_head
            && let Some(end) = words.windows(4).position(|it| it == b"\r\n\r\n")
        {
            words.truncate(end + 4);
        }
        let Some(fd) = self.fd.take() else {
            return Step::Done;
        };
        Step::Become(Closing::client(fd, words, core.now, true))
    }

    fn read(&mut self, core: &mut ServeCore, token: ClientToken, flags: EventFlags) -> Step {
        let Some(fd) = &self.fd else {
            return Step::Done;
        };
        if self.is_asking {
            return Step::Wait;
        }
        let len = match peek(fd, &mut core.scratch[..LONGEST]) {
            Peeked::Bytes(len) => len,
            Peeked::Nothing => return Step::Wait,
            Peeked::End | Peeked::Broken => return Step::Done,
        };
        let end = match HeadScan::default().scan(&core.scratch[..len]) {
            Ok(Some(end)) => end,
            Ok(None) if flags.intersects(EventFlags::RDHUP | EventFlags::HUP) => {
                return Step::Done;
            }
            Ok(None) if len < LONGEST => return Step::Wait,
            _ => return self.answer(core, answer("400 Bad Request", "", "no request of HTTP")),
        };
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut fields);
        let read = request.parse(&core.scratch[..end]);
        let (Ok(_), Some(method), Some(path)) = (read, request.method, request.path) else {
            return self.answer(core, answer("400 Bad Request", "", "no request of HTTP"));
        };
        self.is_head = method == "HEAD";
        let is_read = self.is_head || method == "GET";
        let path = path.split('?').next().unwrap_or_default().to_owned();
        if !is_read {
            let words = answer(
                "405 Method Not Allowed",
                "Allow: GET, HEAD\r\n",
                "only GET and HEAD",
            );
            return self.answer(core, words);
        }
        let is_taken = consume(fd, end, &mut core.scratch);
        let pages = Arc::clone(&self.pages);
        self.is_asking = is_taken && core.make_page(token, move || pages(&path));
        match self.is_asking {
            true => Step::Wait,
            false => self.answer(core, answer("503 Service Unavailable", "", "too many ask")),
        }
    }
}

fn shown(page: Option<InfoPage>) -> Vec<u8> {
    let Some(page) = page else {
        return answer("404 Not Found", "", "there is no such page");
    };
    let reason = match page.status {
        200 => "OK",
        503 => "Service Unavailable",
        _ => "",
    };
    let head = format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.status,
        page.content_type,
        page.body.len()
    );
    [head.as_bytes(), page.body.as_bytes()].concat()
}

impl ProxyClient for InfoClient {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        core.info_client(token);
        match &self.fd {
            Some(fd) if core.watch(fd, token, READABLE) => {
                self.read(core, token, EventFlags::empty())
            }
            _ => Step::Done,
        }
    }

    fn event(&mut self, core: &mut ServeCore, token: ClientToken, flags: EventFlags) -> Step {
        self.read(core, token, flags)
    }

    fn told(&mut self, core: &mut ServeCore, _: ClientToken, news: News) -> Step {
        match news {
            News::Page(page) => self.answer(core, shown(page)),
            _ => Step::Wait,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.until)
    }

    fn counts(&self) -> bool {
        false
    }

    fn failed(&mut self, core: &mut ServeCore) {
        core.report
            .refused(ServiceName::Info, RefusalReason::Defect, &"a client");
    }
}
