/// Defines an enum whose variants have a name for machines and an explanation for people, which is
/// their documentation.
///
/// What explains itself to readers of the code so explains itself to users, too: the manual page is
/// made of it.
#[macro_export]
macro_rules! explained_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $enum:ident {
            $($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $enum {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl $enum {
            /// Every variant, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name in reports: stable, in snake case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Its meaning.
            pub const fn explanation(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc),+).trim_ascii(),)+
                }
            }
        }
    };
}
