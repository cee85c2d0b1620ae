//! Macro that defines enumerations of named codes.

/// Defines an enumeration whose variants each have a code and a name for traces.
macro_rules! codes {
    (
        $(#[$meta:meta])*
        pub enum $name:ident($int:ty) {
            $($(#[$doc:meta])* $variant:ident = $code:literal $word:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* #[allow(missing_docs)] $variant,)*
        }

        impl $name {
            /// All variants, in order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Decodes a code. Returns `None` if the code is unknown.
            pub const fn from_code(code: $int) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the code that the interface assigns to the variant.
            pub const fn code(self) -> $int {
                match self {
                    $(Self::$variant => $code,)*
                }
            }

            /// Returns the name that appears in traces.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// Returns the code together with its name, for traces.
            pub fn word(code: $int) -> $crate::describe::Code {
                $crate::describe::Code(code.into(), Self::from_code(code).map(Self::name))
            }
        }

        impl $crate::describe::Field for $name {
            fn show(&self, name: &str, to: &mut dyn $crate::describe::Visitor) {
                self.name().show(name, to);
            }
        }
    };
}
pub(crate) use codes;
