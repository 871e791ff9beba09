//! A client of SOCKS5, from its greeting to the connection that it gets.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::acceptor::{ClientSocket, From};
use super::closing::Closing;
use super::core::{ProxyClient, ServeCore, Step};
use super::dial::Dial;
use super::news::{ClientToken, News};
use super::report::{RefusalReason, ServiceName};
use super::secret::{LoginCheck, is_same};
use super::socket::{Peeked, READABLE, consume, peek, send_short};
use super::socks5::{self, SocksCode, SocksCommand, SocksMistake};
use super::udp_relay::UdpRelay;

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A client of SOCKS5.
pub(crate) struct SocksClient {
    /// `None` once it went on to something else.
    fd: Option<OwnedFd>,
    from: Option<SocketAddr>,
    login: Option<Arc<LoginCheck>>,
    stage: SocksStage,
    until: Instant,
}

enum SocksStage {
    Greeting,
    Login,
    Request,
    Dialling(Dial),
}

impl SocksClient {
    pub(crate) fn new(
        arrival: ClientSocket,
        login: Option<Arc<LoginCheck>>,
        core: &ServeCore,
    ) -> Self {
        Self {
            fd: Some(arrival.fd),
            from: arrival.from,
            login,
            stage: SocksStage::Greeting,
            until: core.now + core.limits.request,
        }
    }

    fn refuse(&mut self, core: &ServeCore, reason: RefusalReason, words: &[u8]) -> Step {
        core.report
            .refused(ServiceName::Socks5, reason, &From(self.from));
        match self.fd.take() {
            Some(fd) if !words.is_empty() => {
                Step::Become(Closing::client(fd, words.to_vec(), core.now, true))
            }
            _ => Step::Done,
        }
    }

    fn mistaken(&mut self, core: &ServeCore, mistake: SocksMistake) -> Step {
        let failed = |code| socks5::reply(code, NOWHERE);
        let (reason, words) = match (mistake, &self.stage) {
            (SocksMistake::Version4, _) => (RefusalReason::Socks4, socks5::SOCKS4_REFUSED.to_vec()),
            (_, SocksStage::Greeting) => (RefusalReason::Malformed, socks5::NO_METHOD.to_vec()),
            (_, SocksStage::Login) => (RefusalReason::Malformed, socks5::LOGIN_WRONG.to_vec()),
            (SocksMistake::AddressType(_), _) => (
                RefusalReason::NotSupported,
                failed(SocksCode::AddressTypeNotSupported),
            ),
            (SocksMistake::Name, _) => (
                RefusalReason::UnknownName,
                failed(SocksCode::HostUnreachable),
            ),
            (SocksMistake::Version(_), _) => (RefusalReason::Malformed, failed(SocksCode::Failed)),
        };
        self.refuse(core, reason, &words)
    }

    /// Reads messages until one is incomplete, or the client waits for something.
    fn read(&mut self, core: &mut ServeCore, token: ClientToken, flags: EventFlags) -> Step {
        loop {
            let Some(fd) = &self.fd else {
                return Step::Done;
            };
            let peeked = match peek(fd, &mut core.scratch[..socks5::LONGEST]) {
                Peeked::Bytes(len) => len,
                Peeked::Nothing => return Step::Wait,
                // A probe of the port: a connection without a request.
                Peeked::End if matches!(self.stage, SocksStage::Greeting) => return Step::Done,
                Peeked::End | Peeked::Broken => return self.gone(core),
            };
            let bytes = &core.scratch[..peeked];
            // What a message says, its length, and the answer.
            let (read, answer): (Result<Option<usize>, _>, Vec<u8>) = match &self.stage {
                SocksStage::Greeting => match socks5::greeting(bytes) {
                    Ok(Some((offered, len))) => {
                        let (answer, next) = match &self.login {
                            None if offered.without_login => {
                                (socks5::WITHOUT_LOGIN, Some(SocksStage::Request))
                            }
                            Some(_) if offered.with_login => {
                                (socks5::WITH_LOGIN, Some(SocksStage::Login))
                            }
                            _ => (socks5::NO_METHOD, None),
                        };
                        match next {
                            Some(next) => self.stage = next,
                            None => return self.refuse(core, RefusalReason::NotAllowed, &answer),
                        }
                        (Ok(Some(len)), answer.to_vec())
                    }
                    other => (other.map(|_| None), Vec::new()),
                },
                SocksStage::Login => match socks5::login(bytes) {
                    Ok(Some((login, len))) => {
                        // Both are compared, whatever the first one is.
                        let is_right = self.login.as_ref().is_some_and(|right| {
                            is_same(login.user, right.user())
                                & is_same(login.password, right.password())
                        });
                        if !is_right {
                            let answer = socks5::LOGIN_WRONG;
                            return self.refuse(core, RefusalReason::NotAllowed, &answer);
                        }
                        self.stage = SocksStage::Request;
                        (Ok(Some(len)), socks5::LOGIN_RIGHT.to_vec())
                    }
                    Ok(None) => (Ok(None), Vec::new()),
                    Err(mistake) => (Err(mistake), Vec::new()),
                },
                SocksStage::Request => match socks5::request(bytes) {
                    Ok(Some((request, len))) => {
                        if !consume(fd, len, &mut core.scratch) {
                            return self.gone(core);
                        }
                        return self.serve(core, token, request);
                    }
                    other => (other.map(|_| None), Vec::new()),
                },
                SocksStage::Dialling(_) => return Step::Wait,
            };
            match read {
                Ok(Some(len)) => {
                    if !consume(fd, len, &mut core.scratch) || !send_short(fd, &answer) {
                        return self.gone(core);
                    }
                }
                // The end has come, and there is no more before it.
                Ok(None) if flags.intersects(EventFlags::RDHUP | EventFlags::HUP) => {
                    return self.gone(core);
                }
                Ok(None) => return Step::Wait,
                Err(mistake) => return self.mistaken(core, mistake),
            }
        }
    }

    fn gone(&mut self, core: &ServeCore) -> Step {
        self.refuse(core, RefusalReason::Gone, &[])
    }

    fn serve(
        &mut self,
        core: &mut ServeCore,
        token: ClientToken,
        (command, target): (SocksCommand, crate::config::ProxyEndpoint),
    ) -> Step {
        match command {
            SocksCommand::Connect => match Dial::begin(core, token, self.from, &target) {
                Ok(dial) => {
                    self.until = dial.deadline();
                    self.stage = SocksStage::Dialling(dial);
                    Step::Wait
                }
                Err(reason) => self.failed_with(core, reason),
            },
            SocksCommand::UdpAssociate => {
                let Some(fd) = self.fd.take() else {
                    return Step::Done;
                };
                match UdpRelay::new(core, fd, self.from, &target) {
                    Ok(relay) => Step::Become(Box::new(relay)),
                    Err((fd, reason)) => {
                        self.fd = Some(fd);
                        self.failed_with(core, reason)
                    }
                }
            }
            SocksCommand::Other(_) => {
                let words = socks5::reply(SocksCode::CommandNotSupported, NOWHERE);
                self.refuse(core, RefusalReason::NotSupported, &words)
            }
        }
    }

    fn failed_with(&mut self, core: &ServeCore, reason: RefusalReason) -> Step {
        self.refuse(core, reason, &socks5::reply(code_of(reason), NOWHERE))
    }
}

/// The code that tells a client why. That of an unreachable target and that of an unknown name differ, as RFC
/// 1928 has two for them; after a time without an answer, others say "TTL expired".
fn code_of(reason: RefusalReason) -> SocksCode {
    match reason {
        RefusalReason::Refused => SocksCode::Refused,
        RefusalReason::Unreachable => SocksCode::NetworkUnreachable,
        RefusalReason::UnknownName | RefusalReason::NoDnsServers => SocksCode::HostUnreachable,
        RefusalReason::TimedOut => SocksCode::TtlExpired,
        RefusalReason::NotAllowed => SocksCode::NotAllowed,
        _ => SocksCode::Failed,
    }
}

impl ProxyClient for SocksClient {
    fn begin(&mut self, core: &mut ServeCore, token: ClientToken) -> Step {
        match &self.fd {
            Some(fd) if core.watch(fd, token, READABLE) => {
                self.read(core, token, EventFlags::empty())
            }
            _ => Step::Done,
        }
    }

    fn event(&mut self, core: &mut ServeCore, token: ClientToken, flags: EventFlags) -> Step {
        match self.stage {
            // What it sends early waits for the connection, and it may have sent all.
            SocksStage::Dialling(_) if !flags.intersects(EventFlags::HUP | EventFlags::ERR) => {
                Step::Wait
            }
            SocksStage::Dialling(_) => self.gone(core),
            _ => self.read(core, token, flags),
        }
    }

    fn told(&mut self, core: &mut ServeCore, token: ClientToken, news: News) -> Step {
        let SocksStage::Dialling(dial) = &mut self.stage else {
            return Step::Wait;
        };
        let opened = match dial.told(core, token, news) {
            None => return Step::Wait,
            Some(Ok(opened)) => opened,
            Some(Err(reason)) => return self.failed_with(core, reason),
        };
        let Some(fd) = self.fd.take() else {
            return Step::Done;
        };
        core.unwatch(&fd);
        let reply = socks5::reply(SocksCode::Succeeded, opened.local_addr());
        if send_short(&fd, &reply) {
            // After the end of the tunnel there is nobody to tell.
            let _ = opened.join(fd);
            return Step::Done;
        }
        self.gone(core)
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.until)
    }

    fn expired(&mut self, core: &mut ServeCore, _: ClientToken) -> Step {
        match self.stage {
            SocksStage::Dialling(_) => self.failed_with(core, RefusalReason::TimedOut),
            _ => self.refuse(core, RefusalReason::Slow, &[]),
        }
    }

    fn failed(&mut self, core: &mut ServeCore) {
        let who = From(self.from);
        core.report
            .refused(ServiceName::Socks5, RefusalReason::Defect, &who);
    }
}
