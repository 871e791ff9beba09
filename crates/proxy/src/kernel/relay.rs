//! Two stream sockets whose bytes go from each to the other one, through pipes: the kernel moves pages, and copies
//! nothing.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::sockets::reset;

/// Bytes that are moved at once; a pipe holds as many where the host allows it.
const CHUNK: usize = 256 << 10;
/// Bytes that a direction moves before others have their turn.
const BUDGET: usize = 1 << 20;
/// Bytes that are moved at once without a pipe.
const COPIED: usize = 16 << 10;
/// Pipes that are kept for directions that have bytes next.
const MOST_IDLE: usize = 32;

/// Two ends of a pipe: to read, to write.
type PipeEnds = (OwnedFd, OwnedFd);

/// Empty pipes. A direction has one only while bytes are under way: connections that rest have none.
pub(super) struct IdlePipes {
    idle: Vec<PipeEnds>,
    make: fn() -> Result<PipeEnds, Errno>,
}

impl Default for IdlePipes {
    fn default() -> Self {
        Self {
            idle: Vec::new(),
            make: || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK),
        }
    }
}

impl IdlePipes {
    /// One, if there is one or descriptors for it.
    fn take(&mut self) -> Option<PipeEnds> {
        if let Some(pipe) = self.idle.pop() {
            return Some(pipe);
        }
        let pipe = (self.make)().ok()?;
        // A user may have so many pages of pipes: a smaller one does as well.
        let _ = fcntl_setpipe_size(&pipe.1, CHUNK);
        Some(pipe)
    }

    fn give(&mut self, pipe: PipeEnds) {
        if self.idle.len() < MOST_IDLE {
            self.idle.push(pipe);
        }
    }
}

/// What was moved without a pipe.
enum Copied {
    Bytes(usize),
    /// The source has nothing for now.
    Nothing,
    /// It has sent all.
    End,
    /// The destination takes nothing for now.
    Full,
}

/// Moves some bytes where there is no descriptor for a pipe. What was not sent stays in the source.
fn copy(from: &OwnedFd, to: &OwnedFd) -> Result<Copied, Errno> {
    let mut buffer = [0; COPIED];
    let len = match retry_on_intr(|| recv(from, &mut buffer, RecvFlags::PEEK)) {
        Ok((_, 0)) => return Ok(Copied::End),
        Ok((_, len)) => len,
        Err(Errno::AGAIN) => return Ok(Copied::Nothing),
        Err(error) => return Err(error),
    };
    match retry_on_intr(|| send(to, &buffer[..len], SendFlags::NOSIGNAL)) {
        Ok(sent) => {
            let (_, taken) = retry_on_intr(|| recv(from, &mut buffer[..sent], RecvFlags::empty()))?;
            // It was there before, and nobody else reads it.
            if taken < sent {
                Err(Errno::IO)
            } else {
                Ok(Copied::Bytes(sent))
            }
        }
        Err(Errno::AGAIN) => Ok(Copied::Full),
        Err(error) => Err(error),
    }
}

/// One direction.
#[derive(Default)]
struct Direction {
    pipe: Option<PipeEnds>,
    /// Bytes in the pipe.
    held: usize,
    /// Its source has sent all.
    has_read_all: bool,
    /// Its destination was told so.
    is_over: bool,
}

/// What is to become of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelayState {
    /// It waits for events.
    Waits,
    /// It has more to do at once.
    HasMore,
    /// Both directions have ended.
    Over,
}

/// Two sockets that do not block.
pub(super) struct Relay {
    sockets: [OwnedFd; 2],
    /// Since the last event that said so, it was not found otherwise.
    readable: [bool; 2],
    writable: [bool; 2],
    /// Neither sends nor takes anything any more.
    gone: [bool; 2],
    is_orphaned: bool,
    /// From each socket to the other one.
    directions: [Direction; 2],
}

impl Relay {
    /// The events to wait for, of either socket.
    pub(super) const EVENTS: EventFlags = EventFlags::IN
        .union(EventFlags::OUT)
        .union(EventFlags::RDHUP)
        .union(EventFlags::ET);

    pub(super) fn new(sockets: [OwnedFd; 2]) -> Self {
        Self {
            sockets,
            readable: [true; 2],
            writable: [true; 2],
            gone: [false; 2],
            is_orphaned: false,
            directions: Default::default(),
        }
    }

    pub(super) fn sockets(&self) -> &[OwnedFd; 2] {
        &self.sockets
    }

    /// An event of one of the sockets.
    pub(super) fn hear(&mut self, side: usize, flags: EventFlags) {
        let end = EventFlags::HUP | EventFlags::ERR;
        self.readable[side] |= flags.intersects(EventFlags::IN | EventFlags::RDHUP | end);
        self.writable[side] |= flags.intersects(EventFlags::OUT | end);
        self.gone[side] |= flags.intersects(EventFlags::HUP);
    }

    /// Whether, since the last call, one of the two is gone, and the other one was told and has not ended: it may never
    /// do so.
    pub(super) fn becomes_orphaned(&mut self) -> bool {
        let was = self.is_orphaned;
        self.is_orphaned = (0..2).any(|side| self.gone[side] && self.directions[side].is_over);
        self.is_orphaned && !was
    }

    /// Moves what can be moved.
    ///
    /// # Errors
    ///
    /// A socket failed: both are to be [reset](Self::reset).
    pub(super) fn run(&mut self, idle: &mut IdlePipes) -> Result<RelayState, Errno> {
        let mut has_more = false;
        for side in 0..2 {
            has_more |= self.run_direction(side, idle)?;
            let direction = &mut self.directions[side];
            if direction.held == 0
                && let Some(pipe) = direction.pipe.take()
            {
                idle.give(pipe);
            }
        }
        Ok(match self.directions.iter().all(|it| it.is_over) {
            true => RelayState::Over,
            false if has_more => RelayState::HasMore,
            false => RelayState::Waits,
        })
    }

    /// True if the budget ended it.
    fn run_direction(&mut self, side: usize, idle: &mut IdlePipes) -> Result<bool, Errno> {
        let (from, to) = (&self.sockets[side], &self.sockets[1 - side]);
        let (readable, writable) = (&mut self.readable[side], &mut self.writable[1 - side]);
        let direction = &mut self.directions[side];
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let mut moved = 0;
        while !direction.is_over {
            if moved >= BUDGET {
                return Ok(true);
            }
            if direction.held == 0 && !direction.has_read_all {
                if !*readable {
                    break;
                }
                if direction.pipe.is_none() {
                    direction.pipe = idle.take();
                }
                let Some((_, into)) = &direction.pipe else {
                    if !*writable {
                        break;
                    }
                    match copy(from, to)? {
                        Copied::Bytes(len) => moved += len,
                        Copied::End => direction.has_read_all = true,
                        Copied::Nothing => *readable = false,
                        Copied::Full => *writable = false,
                    }
                    continue;
                };
                match splice(from, None, into, None, CHUNK, flags) {
                    Ok(0) => direction.has_read_all = true,
                    Ok(len) => direction.held = len,
                    Err(Errno::AGAIN) => *readable = false,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            if direction.held > 0 {
                let (true, Some((out_of, _))) = (*writable, &direction.pipe) else {
                    break;
                };
                match splice(out_of, None, to, None, direction.held, flags) {
                    Ok(len) => {
                        direction.held = direction.held.saturating_sub(len);
                        moved += len;
                    }
                    Err(Errno::AGAIN) => *writable = false,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            } else if direction.has_read_all {
                shutdown(to, Shutdown::Write)?;
                direction.is_over = true;
            }
        }
        Ok(false)
    }

    /// Ends it: either end learns that something was lost.
    pub(super) fn reset(self) {
        self.sockets.iter().for_each(reset);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let one = TcpStream::connect(address).expect("connected");
        (one, listener.accept().expect("accepted").0)
    }

    /// A relay, and its clients.
    fn relay() -> (Relay, TcpStream, TcpStream) {
        let ((one, ours), (other, theirs)) = (pair(), pair());
        for socket in [&ours, &theirs] {
            socket.set_nonblocking(true).expect("a socket");
        }
        (Relay::new([ours.into(), theirs.into()]), one, other)
    }

    fn hear_all(relay: &mut Relay) {
        for side in 0..2 {
            relay.hear(side, EventFlags::IN | EventFlags::OUT);
        }
    }

    #[test]
    fn an_end_is_passed_on_behind_the_last_byte_and_the_other_direction_goes_on() {
        let (mut relay, mut one, mut other) = relay();
        let mut idle = IdlePipes::default();
        one.write_all(b"all of it").expect("sent");
        one.shutdown(std::net::Shutdown::Write).expect("open");
        let mut read = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| other.read_to_end(&mut read).expect("it ends well"));
            while !relay.directions[0].is_over {
                hear_all(&mut relay);
                assert_ne!(relay.run(&mut idle), Ok(RelayState::Over));
            }
        });
        assert_eq!(read, b"all of it");
        other.write_all(b"back").expect("sent");
        drop(other);
        let mut read = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| one.read_to_end(&mut read).expect("it ends well"));
            loop {
                hear_all(&mut relay);
                if relay.run(&mut idle) == Ok(RelayState::Over) {
                    drop(relay);
                    break;
                }
            }
        });
        assert_eq!(read, b"back");
        assert!(!idle.idle.is_empty(), "the pipes came back");
    }

    #[test]
    fn a_reset_is_passed_on() {
        let (mut relay, one, mut other) = relay();
        let mut idle = IdlePipes::default();
        assert_eq!(relay.run(&mut idle), Ok(RelayState::Waits));
        reset(&one.into());
        let failed = loop {
            hear_all(&mut relay);
            if let Err(error) = relay.run(&mut idle) {
                break error;
            }
        };
        assert_eq!(failed, Errno::CONNRESET);
        relay.reset();
        let error = other.read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn what_its_destination_does_not_take_waits_in_the_source() {
        let (mut relay, mut one, other) = relay();
        let mut idle = IdlePipes::default();
        one.set_nonblocking(true).expect("a socket");
        let (chunk, mut sent) = (vec![7; 1 << 16], 0);
        // Both sockets and the pipe are full in the end.
        while let Ok(len) = one.write(&chunk) {
            sent += len;
            hear_all(&mut relay);
            relay.run(&mut idle).expect("no failure");
        }
        assert!(relay.directions[0].held <= CHUNK);
        one.shutdown(std::net::Shutdown::Write).expect("open");
        let reader = std::thread::spawn(move || {
            let mut read = Vec::new();
            (&other).read_to_end(&mut read).expect("it ends well");
            read
        });
        while !relay.directions[0].is_over {
            hear_all(&mut relay);
            relay.run(&mut idle).expect("no failure");
        }
        let read = reader.join().expect("no panic");
        assert_eq!(
            (read.len(), read.iter().all(|byte| *byte == 7)),
            (sent, true)
        );
    }

    #[test]
    fn bytes_pass_without_descriptors_for_pipes() {
        let (mut relay, mut one, mut other) = relay();
        let mut idle = IdlePipes {
            make: || Err(Errno::MFILE),
            ..IdlePipes::default()
        };
        let sent: Vec<u8> = (0..3_000_000_u32).map(|it| it.to_le_bytes()[1]).collect();
        let writer = std::thread::spawn({
            let sent = sent.clone();
            move || {
                one.write_all(&sent).expect("it takes all");
                one.shutdown(std::net::Shutdown::Write).expect("open");
                one
            }
        });
        let reader = std::thread::spawn(move || {
            let mut read = Vec::new();
            other.read_to_end(&mut read).expect("it ends well");
            read
        });
        while !relay.directions[0].is_over {
            hear_all(&mut relay);
            relay.run(&mut idle).expect("no failure");
        }
        assert!(reader.join().expect("no panic") == sent);
        drop(writer.join());
    }
}
