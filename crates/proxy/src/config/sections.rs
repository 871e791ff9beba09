//! The sections of a proxy's file, and their keys.

use adit_ctl::config::{nearest, quote};

/// The keys of `[Interface]`. From this one on they say something about the host's network.
const OF_HOST: usize = 7;
const INTERFACE: [&str; 14] = [
    "Address",
    "PrivateKey",
    "DNS",
    "MTU",
    "ListenPort",
    "CheckAlive",
    "CheckAliveInterval",
    "FwMark",
    "Table",
    "PreUp",
    "PostUp",
    "PreDown",
    "PostDown",
    "SaveConfig",
];

/// A section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxySection {
    Interface,
    Peer,
    Socks5,
    Http,
    Sni,
    TcpClient,
    TcpServer,
    UdpClient,
    UdpServer,
    Stdio,
    Resolve,
}

/// Keys that add to what stands above.
const LISTS: [&str; 4] = ["Address", "DNS", "AllowedIPs", "CheckAlive"];

impl ProxySection {
    pub(super) const ALL: [Self; 11] = [
        Self::Interface,
        Self::Peer,
        Self::Socks5,
        Self::Http,
        Self::Sni,
        Self::TcpClient,
        Self::TcpServer,
        Self::UdpClient,
        Self::UdpServer,
        Self::Stdio,
        Self::Resolve,
    ];

    /// Its name, as wireproxy's documents write it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Interface => "Interface",
            Self::Peer => "Peer",
            Self::Socks5 => "Socks5",
            Self::Http => "http",
            Self::Sni => "SNI",
            Self::TcpClient => "TCPClientTunnel",
            Self::TcpServer => "TCPServerTunnel",
            Self::UdpClient => "UDPProxyTunnel",
            Self::UdpServer => "UDPServerTunnel",
            Self::Stdio => "STDIOTunnel",
            Self::Resolve => "Resolve",
        }
    }

    pub(super) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Interface => &INTERFACE,
            Self::Peer => &[
                "PublicKey",
                "PresharedKey",
                "Endpoint",
                "PersistentKeepalive",
                "AllowedIPs",
            ],
            Self::Socks5 => &["BindAddress", "Username", "Password"],
            Self::Http => &["BindAddress", "Username", "Password", "CertFile", "KeyFile"],
            Self::Sni => &["BindAddress"],
            Self::TcpClient => &["BindAddress", "Target"],
            Self::TcpServer => &["ListenPort", "Target"],
            Self::UdpClient => &["BindAddress", "Target", "InactivityTimeout"],
            Self::UdpServer => &["ListenPort", "Target", "InactivityTimeout"],
            Self::Stdio => &["Target"],
            Self::Resolve => &["ResolveStrategy"],
        }
    }

    /// The section of this name, in any case.
    pub(super) fn named(name: &str) -> Option<Self> {
        let name = bare(name);
        let mut all = Self::ALL.into_iter();
        all.find(|it| it.name().eq_ignore_ascii_case(&name))
    }

    /// The section that a name is probably meant to be.
    pub(super) fn meant(name: &str) -> Option<Self> {
        nearest(&bare(name), &Self::ALL.map(Self::name)).and_then(Self::named)
    }

    /// The proper spelling of a key.
    pub(super) fn key(self, key: &str) -> Option<&'static str> {
        let key = bare(key);
        let mut keys = self.keys().iter().copied();
        keys.find(|known| known.eq_ignore_ascii_case(&key))
    }

    /// Whether the tunnel is configured here, in wg-quick's words.
    pub(super) fn is_of_tunnel(self) -> bool {
        matches!(self, Self::Interface | Self::Peer)
    }

    /// Whether clients choose where they get to.
    pub(super) fn leads_anywhere(self) -> bool {
        matches!(self, Self::Socks5 | Self::Http | Self::Sni)
    }
}

/// Whether a key may stand several times in a section.
pub(super) fn is_list(key: &str) -> bool {
    LISTS.contains(&key)
}

/// Whether a key says something about the host's network, which a proxy does not touch.
pub(super) fn is_of_host(key: &str) -> bool {
    INTERFACE[OF_HOST..].contains(&key)
}

/// Explains a section that there is not.
pub(super) fn no_section(name: &str) -> String {
    let there_is_none = match quote(name) {
        word if word.starts_with('"') => {
            format!("there is no section [{}]", word.trim_matches('"'))
        }
        word => format!("there is no section whose name is {word}"),
    };
    match ProxySection::meant(name) {
        Some(section) => format!("{there_is_none}: did you mean [{}]?", section.name()),
        None => {
            let names = ProxySection::ALL.map(ProxySection::name);
            format!("{there_is_none}: expected one of {}", names.join(", "))
        }
    }
}

/// Explains a key that a section does not have.
pub(super) fn no_key(section: ProxySection, key: &str) -> String {
    let name = section.name();
    let has_no = format!("[{name}] has no key {}", quote(key));
    if key.eq_ignore_ascii_case("Open") && section.leads_anywhere() {
        return "Open stands in a comment, which wireproxy passes over: # Open = yes".to_owned();
    }
    match nearest(&bare(key), section.keys()) {
        Some(name) => format!("{has_no}: did you mean {name}?"),
        None => format!("{has_no}: expected one of {}", section.keys().join(", ")),
    }
}

/// A word without the spaces in it, which wg passes over.
fn bare(word: &str) -> String {
    word.chars().filter(|c| !c.is_ascii_whitespace()).collect()
}
