//! A tunnel of gotatun's library over its own TUN device and UDP sockets, on the runtime that
//! `#[tokio::main]` makes, with the socket buffers of its command.

use embedders::{Failure, Settings};
use gotatun::device::{DeviceBuilder, Peer};
use gotatun::x25519::{PublicKey, StaticSecret};

const SOCKET_BUFFER: usize = 7 << 20;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let settings = Settings::read()?;
    let peer = Peer::new(PublicKey::from(settings.peer))
        .with_endpoint(settings.endpoint)
        .with_allowed_ip("0.0.0.0/0".parse()?)
        .with_allowed_ip("::/0".parse()?);
    let device = DeviceBuilder::new()
        .with_default_udp()
        .udp_recv_buffer_size(SOCKET_BUFFER)
        .udp_send_buffer_size(SOCKET_BUFFER)
        .create_tun(&settings.name)?
        .with_private_key(StaticSecret::from(settings.key))
        .with_listen_port(settings.port)
        .with_peer(peer)
        .build();
    let mut device = device.await?;
    Err(format!("the device stopped: {:?}", device.wait().await).into())
}
