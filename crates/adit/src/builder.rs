//! How a tunnel begins.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use adit_engine::{Embedded, Engine, OnSocket, Resume};
use adit_io::Offloads;

use crate::config::{Config, check_mtu};
use crate::driver::Driver;
use crate::error::Error;
use crate::events::Events;
use crate::hand_over::HandOver;
use crate::packet_io::{PacketIo, Packets};
use crate::parts::{Parts, Source};
use crate::threads::Threads;
use crate::tunnel::Tunnel;

/// Called with the events of the engine.
type EngineListener = Arc<dyn Fn(&adit_engine::Event) + Send + Sync>;

/// A tunnel that is about to begin: [`Tunnel::builder`].
#[must_use = "a tunnel begins with start()"]
pub struct Builder {
    config: Config,
    mtu: usize,
    threads: Threads,
    merges: bool,
    on_socket: Option<OnSocket>,
    listener: Option<EngineListener>,
    source: Option<Result<(Source, Offloads), Error>>,
}

impl Tunnel {
    /// A tunnel that is to be as `config` says. It needs a [source of packets](Builder::packets).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = adit::Config::new(adit::PrivateKey::generate()?);
    /// let (io, packets) = adit::channel(1 << 20);
    /// let tunnel = adit::Tunnel::builder(config).packets(io).start()?;
    /// println!("listens on {}", tunnel.status()?.listen_port);
    /// # drop(packets);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(config: Config) -> Builder {
        Builder::new(config)
    }
}

impl Builder {
    fn new(config: Config) -> Self {
        Self {
            config,
            mtu: 1420,
            threads: Threads::default(),
            merges: true,
            on_socket: None,
            listener: None,
            source: None,
        }
    }

    /// Takes packets from here, and delivers them there. The last source that was named is that of the tunnel.
    pub fn packets(mut self, io: impl PacketIo) -> Self {
        let source = Packets::new(io).map(|source| (Arc::new(source) as Source, Offloads::ALL));
        self.source = Some(source.map_err(Error::Host));
        self
    }

    #[cfg(feature = "linux")]
    pub(crate) fn source(mut self, source: Result<(Source, Offloads), Error>) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets the MTU of the inner network, 1420 by default: packets are padded up to it, and the source is
    /// told of no other.
    pub fn mtu(mut self, mtu: usize) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets the threads.
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = threads;
        self
    }

    /// Whether packets of one flow are delivered as one, which is the default. Otherwise each is delivered
    /// alone.
    pub fn merged(mut self, merges: bool) -> Self {
        self.merges = merges;
        self
    }

    /// Has `on_socket` called with each UDP socket before it is bound; true for IPv6: to bind it to a
    /// device, or to keep it out of a VPN (Android's `protect`). Its error is that of the bind.
    pub fn on_socket(
        mut self,
        on_socket: impl Fn(BorrowedFd<'_>, bool) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.on_socket = Some(Arc::new(on_socket));
        self
    }

    /// Has the engine tell its events, those that are told only to who listens included: for the `adit`
    /// command, and no part of the API.
    #[doc(hidden)]
    pub fn listener(mut self, listener: EngineListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Begins the tunnel, on threads of its own. It is up when this returns: its port is bound.
    ///
    /// # Errors
    ///
    /// [`Error`] says what is wrong, and whose fault it is; nothing is left of the tunnel.
    pub fn start(self) -> Result<Tunnel, Error> {
        self.config.check()?;
        let engine = Engine::with(&self.threads.settings()).map_err(Error::Host)?;
        let config = self.config.clone();
        let tunnel = Tunnel::new(self.parts(&engine, None)?);
        tunnel.begin(&config)?;
        Ok(tunnel)
    }

    /// Goes on with a tunnel that was handed over, on threads of its own: with its sessions and sockets, and
    /// this source of packets. What of the configuration is another one is changed then.
    ///
    /// # Errors
    ///
    /// As of [`Self::start`], and [`Error::HandOver`]. The sessions are lost: [`Self::start`] begins anew.
    pub fn go_on(self, from: HandOver) -> Result<Tunnel, Error> {
        self.config.check()?;
        let engine = Engine::with(&self.threads.settings()).map_err(Error::Host)?;
        let config = self.config.clone();
        let tunnel = Tunnel::new(self.parts(&engine, Some(from))?);
        tunnel.begin(&config)?;
        Ok(tunnel)
    }

    /// Begins the tunnel on the caller's thread, which calls [`Driver::poll`]. It has no thread.
    ///
    /// # Errors
    ///
    /// As of [`Self::start`].
    pub fn drive(self) -> Result<Driver, Error> {
        self.config.check()?;
        let (engine, driver) = Engine::driven().map_err(Error::Host)?;
        let config = self.config.clone();
        let parts = self.parts(&engine, None)?;
        let mut driver = Driver::new(driver, parts);
        driver.begin(&config)?;
        Ok(driver)
    }

    fn parts(
        self,
        engine: &Engine<Source, Embedded<Source>>,
        from: Option<HandOver>,
    ) -> Result<Parts, Error> {
        let mtu = check_mtu(self.mtu)?;
        let (source, mut offloads) = self.source.unwrap_or(Err(Error::NoPackets))?;
        offloads.tun_gro_tcp &= self.merges;
        offloads.tun_gro_udp &= self.merges;
        offloads.tun_gro_tunnel = false;
        let is_handed_over = from.is_some();
        let events = Events::default();
        let tell = {
            let (events, listener) = (events.clone(), self.listener);
            move |event: &adit_engine::Event| {
                events.tell(event);
                if let Some(listener) = &listener {
                    listener(event);
                }
            }
        };
        let platform = Embedded::new(Arc::clone(&source), offloads, mtu).map_err(Error::Host)?;
        let platform = platform.with_on_socket(self.on_socket).with_listener(tell);
        let end = platform.end();
        let interface = match from {
            None => engine.add(source, platform, offloads),
            Some(from) => {
                let (device, state, sockets) = from.open().map_err(Error::HandOver)?;
                engine.take_over(source, platform, offloads, device, &state, sockets)
            }
        };
        let interface = interface.map_err(Error::Host)?;
        if is_handed_over {
            interface.resume(Resume::AsItWas);
        }
        let on_end = events.clone();
        interface.on_end(move || on_end.end());
        Ok(Parts {
            interface: Arc::new(interface),
            end,
            events,
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("config", &self.config)
            .field("mtu", &self.mtu)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}
