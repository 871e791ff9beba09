//! The process that has the namespaces: it makes them and what is in them, hands out what it made, and from then
//! on makes sockets there.
//!
//! A socket stays in the namespace in which it was made, also as a descriptor of another process. The namespaces
//! live as long as this process, or a descriptor of the other one, refers to them. They have no name and no file.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use adit_io::Offloads;
use adit_io::tun::{Tun, VethQueue};
use adit_netlink::netns::{enter_user_namespace, set_sysctl};
use adit_netlink::{LinkChange, Netlink, Route};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};

use super::setup::{
    InnerNetwork, KernelDevice, MAX_MESSAGE, NamespaceReply, NamespaceRequest, requested,
};

/// The interface; nobody but the kernel sees its name.
const NAME: &str = "adit0";
/// The other one of two that are joined.
const OTHER: &str = "adit1";

/// The routers behind two joined interfaces, so that the kernel has one neighbour of each family and not one for
/// each address. Nobody is asked for them, and they are in no packet.
const ROUTER: Ipv4Addr = Ipv4Addr::new(169, 254, 255, 254);
const ROUTER6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// How long the kernel may take to use an address.
const ADDRESS: Duration = Duration::from_secs(5);

/// Settings of the namespace. Each is for the better only: where /proc/sys is read-only, sockets work as well.
/// Users of sockets may have all ports, and ping; no address waits, and nothing is sent unasked.
const SYSCTLS: [(&str, &str); 5] = [
    ("net.ipv4.ip_unprivileged_port_start", "0"),
    ("net.ipv4.ping_group_range", "0 0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
];

/// Serves the program that started this one with standard input as one end of a pair of sockets
/// ([`SocketNamespace::make`](super::SocketNamespace::make)). It is to be called before anything else, as this process must have
/// one thread; it returns when the other end is closed.
///
/// # Errors
///
/// Standard input is no such socket.
pub fn serve_child() -> io::Result<()> {
    let _ = rustix::thread::set_name(c"adit-kernel-net");
    let stdin = io::stdin();
    let socket = stdin.as_fd();
    let mut message = vec![0; MAX_MESSAGE];
    let len = receive(socket, &mut message)?;
    if len == 0 {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&message[..len]);
    let made = NamespaceRequest::parse(&text)
        .ok_or_else(|| format!("a child of another version was started: {text}"))
        .and_then(|request| make(&request));
    let (reply, device) = match made {
        Ok((reply, device)) => (reply, Some(device)),
        Err(why) => (NamespaceReply { device: None, why }, None),
    };
    reply_with(socket, reply.write().as_bytes(), device.as_ref())?;
    if device.is_none() {
        return Ok(());
    }
    // From here on the other process alone has it.
    drop(device);
    adit_sandbox::begin_namespace()?;
    loop {
        let len = receive(socket, &mut message)?;
        if len == 0 {
            return Ok(());
        }
        let made = requested(&message[..len])
            .ok_or(rustix::io::Errno::INVAL)
            .and_then(|kind| kind.make());
        match made {
            Ok(made) => reply_with(socket, &0_i32.to_ne_bytes(), Some(&made))?,
            Err(error) => reply_with(socket, &error.raw_os_error().to_ne_bytes(), None)?,
        }
    }
}

fn receive(socket: BorrowedFd<'_>, message: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *message, RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(0),
            received => return Ok(received?.0),
        }
    }
}

fn reply_with(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<&OwnedFd>) -> io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fd.map(AsFd::as_fd).into_iter().collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    loop {
        match sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// Makes the namespaces, and the device in them; or says why not.
fn make(request: &NamespaceRequest) -> Result<(NamespaceReply, OwnedFd), String> {
    if let Err(error) = enter_user_namespace() {
        return Err(match error.kind() {
            io::ErrorKind::PermissionDenied => "user namespaces are refused here, by seccomp, by \
                AppArmor or by a sysctl (user.max_user_namespaces, kernel.unprivileged_userns_clone, \
                kernel.apparmor_restrict_unprivileged_userns)"
                .into(),
            _ => error.to_string(),
        });
    }
    for (name, value) in SYSCTLS {
        let _ = set_sysctl(name, value);
    }
    let netlink = Netlink::open().map_err(|error| error.to_string())?;
    let up = LinkChange {
        up: Some(true),
        ..LinkChange::default()
    };
    netlink
        .link("lo")
        .and_then(|lo| netlink.set_link(lo.index, &up))
        .map_err(|error| error.to_string())?;
    let network = &request.network;
    let tun = || tun(&netlink, network).map_err(|error| error.to_string());
    let veth = || veth(&netlink, network).map_err(|error| error.to_string());
    let (device, fd, why) = match request.device {
        KernelDevice::Tun => (KernelDevice::Tun, tun()?, String::new()),
        KernelDevice::PacketSocket => (KernelDevice::PacketSocket, veth()?, String::new()),
        KernelDevice::Any => match tun() {
            Ok(fd) => (KernelDevice::Tun, fd, String::new()),
            Err(no_tun) => match veth() {
                Ok(fd) => (KernelDevice::PacketSocket, fd, no_tun),
                Err(no_veth) => return Err(format!("{no_tun}; {no_veth}")),
            },
        },
    };
    let device = Some(device);
    Ok((NamespaceReply { device, why }, fd))
}

/// A TUN device with this network behind it.
fn tun(netlink: &Netlink, network: &InnerNetwork) -> io::Result<OwnedFd> {
    let tun = Tun::open_embedded(NAME, Offloads::ALL)?;
    let index = netlink.link(NAME)?.index;
    quiet(netlink, index);
    netlink.set_link(index, &change(network))?;
    furnish(netlink, index, network, false)?;
    tun.as_fd().try_clone_to_owned()
}

/// Two joined interfaces: the network is behind the first, and a socket has the packets of the other one.
fn veth(netlink: &Netlink, network: &InnerNetwork) -> io::Result<OwnedFd> {
    netlink.add_veth(NAME, OTHER, None)?;
    let (index, other) = (netlink.link(NAME)?.index, netlink.link(OTHER)?.index);
    quiet(netlink, index);
    quiet(netlink, other);
    let both = LinkChange {
        no_arp: true,
        ..change(network)
    };
    // Its socket comes first, so that nothing is lost.
    let socket = VethQueue::open(other)?;
    netlink.set_link(other, &both)?;
    let address = LinkChange {
        address: Some(VethQueue::ADDRESS),
        ..LinkChange::default()
    };
    netlink.set_link(index, &address)?;
    netlink.set_link(index, &both)?;
    furnish(netlink, index, network, true)?;
    Ok(socket)
}

fn change(network: &InnerNetwork) -> LinkChange<'static> {
    let mtu = network.mtu;
    // TCP makes GSO packets that fit one train, instead of one and a stub. What the engine's own host does, with
    // its reasons: crates/engine/src/host/kernel.rs.
    let segments = (65_487 / (mtu.next_multiple_of(16) + 32)).clamp(1, 64);
    let size = (segments * mtu.saturating_sub(52) + 400).min(65_536);
    LinkChange {
        up: Some(true),
        mtu: u32::try_from(mtu).ok(),
        gso_max_size: u32::try_from(size).ok(),
        ..LinkChange::default()
    }
}

/// Has the kernel send nothing of its own accord through an interface, before that is up: it gets no link-local
/// address. There may be no IPv6.
fn quiet(netlink: &Netlink, index: u32) {
    let quiet = LinkChange {
        no_link_local: true,
        ..LinkChange::default()
    };
    let _ = netlink.set_link(index, &quiet);
}

/// Waits until packets to an address are taken in: those of IPv6 are made in the background, even if nobody is asked
/// whether they are taken.
fn await_address(netlink: &Netlink, ip: IpAddr) -> io::Result<()> {
    let until = Instant::now() + ADDRESS;
    // Before that there may be no way to it at all.
    let is_local = || {
        netlink
            .route_get(ip, None, 0, None)
            .is_ok_and(|it| it.local)
    };
    while !is_local() {
        if Instant::now() > until {
            let error = format!("the kernel does not begin to use the address {ip}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, error));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Gives an interface the addresses, and the default route of each family that there are addresses of.
fn furnish(
    netlink: &Netlink,
    index: u32,
    network: &InnerNetwork,
    has_router: bool,
) -> io::Result<()> {
    for ip in &network.addresses {
        netlink.add_address(index, *ip, if ip.is_ipv4() { 32 } else { 128 }, true)?;
    }
    for ip in &network.addresses {
        await_address(netlink, *ip)?;
    }
    for (any, router) in [
        (IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(ROUTER)),
        (IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(ROUTER6)),
    ] {
        let mut own = network.addresses.iter();
        let Some(first) = own.find(|ip| ip.is_ipv4() == any.is_ipv4()) else {
            continue;
        };
        let mut route = Route::through(index, any, 0);
        route.prefsrc = Some(*first);
        if has_router {
            if router.is_ipv4() {
                netlink.add_route(&Route::through(index, router, 32))?;
            }
            route.gateway = Some(router);
        }
        netlink.add_route(&route)?;
    }
    Ok(())
}
