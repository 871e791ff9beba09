//! The terminal of `adit top`: lines on its screen, and its keys. It is as it was when this is dropped.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Style {
    #[default]
    Plain,
    Bold,
    Heading,
    Red,
    Yellow,
    Green,
    Grey,
}

impl Style {
    /// The parameter of SGR (ECMA-48, 8.3.117).
    const fn parameter(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Bold => "1",
            Self::Heading => "7",
            Self::Red => "31",
            Self::Yellow => "33",
            Self::Green => "32",
            Self::Grey => "90",
        }
    }
}

/// A line of the screen.
pub(super) type Styled = (String, Style);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPress {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    ControlC,
}

/// Another screen than the shell's, no cursor, and no next line for what is too long.
const TAKE: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const GIVE_BACK: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Where a terminal does not tell its own, such as one on a serial line.
const SIZE: [usize; 2] = [80, 24];
/// How long the rest of a key may take. Without a rest it is the key Escape.
const REST: Duration = Duration::from_millis(50);

/// Where keys come from.
struct Keyboard {
    file: OwnedFd,
    /// How it was before.
    modes: Termios,
}

pub(super) struct Screen {
    keyboard: Arc<Keyboard>,
    /// Columns and lines.
    size: [usize; 2],
    /// The lines that are on it.
    shown: Vec<Styled>,
    /// The first bytes of a key.
    begun: Vec<u8>,
}

impl Screen {
    pub(super) fn new() -> io::Result<Self> {
        let stdin = io::stdin();
        let file = match stdin.is_terminal() {
            true => stdin.as_fd().try_clone_to_owned()?,
            false => File::open("/dev/tty")?.into(),
        };
        let modes = tcgetattr(&file)?;
        let mut raw = modes.clone();
        raw.make_raw();
        tcsetattr(&file, OptionalActions::Now, &raw)?;
        let keyboard = Arc::new(Keyboard { file, modes });
        let screen = Self {
            keyboard: Arc::clone(&keyboard),
            size: size(),
            shown: Vec::new(),
            begun: Vec::new(),
        };
        // What a panic says is to be read afterwards.
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            keyboard.give_back();
            tell(panic);
        }));
        write(TAKE)?;
        Ok(screen)
    }

    /// Whether its size has changed since this was asked last.
    pub(super) fn is_resized(&mut self) -> bool {
        let before = std::mem::replace(&mut self.size, size());
        if before == self.size {
            return false;
        }
        // What it makes of what it showed, it does not tell.
        self.shown.clear();
        true
    }

    /// Shows what `lines` makes for so many columns and lines.
    pub(super) fn draw(&mut self, lines: impl FnOnce([usize; 2]) -> Vec<Styled>) -> io::Result<()> {
        let lines = lines(self.size);
        write(&changes(&self.shown, &lines))?;
        self.shown = lines;
        Ok(())
    }

    /// The keys that were pressed, as soon as there are some, or none when the time is over.
    ///
    /// # Errors
    /// `UnexpectedEof` when the terminal has gone.
    pub(super) fn keys(&mut self, within: Duration) -> io::Result<Vec<KeyPress>> {
        let within = if self.begun.is_empty() { within } else { REST };
        let is_more = self.keyboard.waits(within)?;
        if is_more {
            let mut bytes = [0; 256];
            let length = retry_on_intr(|| rustix::io::read(&self.keyboard.file, &mut bytes))?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.begun.extend_from_slice(&bytes[..length]);
        }
        let mut keys = Vec::new();
        while let Some((key, length)) = first(&self.begun) {
            keys.extend(key);
            self.begun.drain(..length);
        }
        if !is_more && self.begun.drain(..).next() == Some(ESCAPE) {
            keys.push(KeyPress::Escape);
        }
        Ok(keys)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.keyboard.give_back();
    }
}

impl Keyboard {
    /// Whether there is something to be read within this time.
    fn waits(&self, within: Duration) -> io::Result<bool> {
        let within = Timespec::try_from(within).map_err(io::Error::other)?;
        let mut descriptors = [PollFd::new(&self.file, PollFlags::IN)];
        let ready = retry_on_intr(|| rustix::event::poll(&mut descriptors, Some(&within)))?;
        Ok(ready > 0)
    }

    fn give_back(&self) {
        let _ = write(GIVE_BACK);
        let _ = tcsetattr(&self.file, OptionalActions::Now, &self.modes);
    }
}

fn size() -> [usize; 2] {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => [size.ws_col.into(), size.ws_row.into()],
        _ => SIZE,
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// What makes a screen that shows `before` show `after`.
fn changes(before: &[Styled], after: &[Styled]) -> String {
    let mut text = String::new();
    for (at, line) in after.iter().enumerate() {
        if before.get(at) == Some(line) {
            continue;
        }
        // Erased before it is written: behind the last column stands the cursor on it.
        let (number, (words, style)) = (at + 1, line);
        text += &format!("\x1b[{number};1H\x1b[2K\x1b[{}m", style.parameter());
        // A name may be another process's: nothing in it is obeyed.
        text.extend(words.chars().filter(|c| !c.is_control()));
        text += "\x1b[0m";
    }
    text
}

const ESCAPE: u8 = 0x1b;

/// The first key of what a terminal sends, if it is one of ours, and its bytes. None if there may be
/// more of it.
fn first(bytes: &[u8]) -> Option<(Option<KeyPress>, usize)> {
    let key = match bytes {
        [] | [ESCAPE] => return None,
        [ESCAPE, b'[', rest @ ..] => return function(rest).map(|(key, length)| (key, length + 2)),
        // Of keypads in another mode.
        [ESCAPE, b'O', rest @ ..] => {
            let last = rest.first()?;
            return Some((named(b"", *last), 3));
        }
        [ESCAPE, ..] => KeyPress::Escape,
        [b'\r' | b'\n', ..] => KeyPress::Enter,
        [0x7f | 0x08, ..] => KeyPress::Backspace,
        [0x03, ..] => KeyPress::ControlC,
        _ => return character(bytes),
    };
    Some((Some(key), 1))
}

/// What follows a control sequence introducer: parameters and a last byte (ECMA-48, 5.4).
fn function(bytes: &[u8]) -> Option<(Option<KeyPress>, usize)> {
    // F1 to F5 of Linux's console.
    if bytes.first() == Some(&b'[') {
        return bytes.get(1).map(|_| (None, 2));
    }
    let length = (bytes.iter()).position(|byte| !matches!(byte, 0x20..=0x3f))?;
    // The second parameter says what was held down beside it.
    let parameter = bytes[..length].split(|byte| *byte == b';').next()?;
    Some((named(parameter, bytes[length]), length + 1))
}

fn named(parameter: &[u8], last: u8) -> Option<KeyPress> {
    Some(match (parameter, last) {
        (_, b'A') => KeyPress::Up,
        (_, b'B') => KeyPress::Down,
        (_, b'H') | (b"1" | b"7", b'~') => KeyPress::Home,
        (b"5", b'~') => KeyPress::PageUp,
        (b"6", b'~') => KeyPress::PageDown,
        _ => return None,
    })
}

fn character(bytes: &[u8]) -> Option<(Option<KeyPress>, usize)> {
    let chunk = bytes.utf8_chunks().next()?;
    match chunk.valid().chars().next() {
        Some(c) => Some(((!c.is_control()).then_some(KeyPress::Char(c)), c.len_utf8())),
        // The beginning of one, or none.
        None if chunk.invalid().len() == bytes.len() && bytes.len() < 4 => None,
        None => Some((None, chunk.invalid().len())),
    }
}
