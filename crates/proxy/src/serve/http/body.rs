//! Where the body of a message ends.

use super::HttpMistake;
use super::head::LONGEST_HTTP_HEAD;

/// The longest extension of a chunk.
const LONGEST_EXTENSION: u32 = 4096;

/// How a body is framed, and what is left of it. Its bytes are passed on as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// So many bytes are left.
    Length(u64),
    /// It is in chunks.
    Chunked(ChunkState),
    /// It ends with the connection.
    UntilClose,
}

/// What was read of a body in chunks (RFC 9112 §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkState {
    step: ChunkStep,
    /// Bytes of the chunk.
    left: u64,
    /// Digits of the size, or bytes of an extension, or of all trailers.
    count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkStep {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the begin of a line after the last chunk.
    TrailerBegin,
    Trailer,
    TrailerLf,
    EndLf,
    End,
}

impl BodyFraming {
    /// A body in chunks of which nothing was read.
    pub fn chunked() -> Self {
        Self::Chunked(ChunkState {
            step: ChunkStep::Size,
            left: 0,
            count: 0,
        })
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(state) => state.step == ChunkStep::End,
            Self::UntilClose => false,
        }
    }

    /// Whether a connection that ends here has cut the body short.
    pub fn is_cut_short(&self) -> bool {
        !self.is_done() && *self != Self::UntilClose
    }

    /// Reads on: how many of these bytes belong to the body.
    ///
    /// # Errors
    ///
    /// [`HttpMistake::Malformed`] if the first byte that is not read cannot follow.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, HttpMistake> {
        match self {
            Self::UntilClose => Ok(bytes.len()),
            Self::Length(left) => {
                let taken = bytes
                    .len()
                    .min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= taken as u64;
                Ok(taken)
            }
            Self::Chunked(state) => {
                let mut taken = 0;
                while taken < bytes.len() && state.step != ChunkStep::End {
                    match state.step {
                        ChunkStep::Data => {
                            let left = usize::try_from(state.left).unwrap_or(usize::MAX);
                            let len = left.min(bytes.len() - taken);
                            taken += len;
                            state.left -= len as u64;
                            if state.left == 0 {
                                state.step = ChunkStep::DataCr;
                            }
                        }
                        _ => {
                            state.byte(bytes[taken])?;
                            taken += 1;
                        }
                    }
                }
                Ok(taken)
            }
        }
    }
}

impl ChunkState {
    /// Reads a byte that is no data.
    fn byte(&mut self, byte: u8) -> Result<(), HttpMistake> {
        use ChunkStep::{
            Data, DataCr, DataLf, End, EndLf, Extension, Size, SizeLf, Trailer, TrailerBegin,
            TrailerLf,
        };
        let wrong = Err(HttpMistake::Malformed("a chunk is malformed"));
        self.step = match (self.step, byte) {
            (Size, _) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                self.count += 1;
                // 15 digits: what others read in fewer bits would be another size.
                if self.count > 15 {
                    return wrong;
                }
                self.left = self.left << 4 | u64::from(digit);
                Size
            }
            (Size, b'\r') if self.count > 0 => SizeLf,
            (Size, b';' | b' ' | b'\t') if self.count > 0 => {
                self.count = 0;
                Extension
            }
            (Extension, b'\r') => SizeLf,
            (Extension, b'\n') => return wrong,
            (Extension, _) => {
                self.counted(LONGEST_EXTENSION)?;
                Extension
            }
            (SizeLf, b'\n') => {
                self.count = 0;
                if self.left > 0 { Data } else { TrailerBegin }
            }
            (DataCr, b'\r') => DataLf,
            (DataLf, b'\n') => Size,
            (TrailerBegin, b'\r') => EndLf,
            (TrailerBegin | Trailer, b'\n') => return wrong,
            (Trailer, b'\r') => TrailerLf,
            (TrailerBegin | Trailer, _) => {
                self.counted(u32::try_from(LONGEST_HTTP_HEAD).unwrap_or(u32::MAX))?;
                Trailer
            }
            (TrailerLf, b'\n') => TrailerBegin,
            (EndLf, b'\n') => End,
            _ => return wrong,
        };
        Ok(())
    }

    fn counted(&mut self, most: u32) -> Result<(), HttpMistake> {
        self.count += 1;
        match self.count > most {
            true => Err(HttpMistake::TooLong),
            false => Ok(()),
        }
    }
}
