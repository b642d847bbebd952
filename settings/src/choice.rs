//! Settings that take one of a few words.

use crate::value::{Kind, Value};

macro_rules! choices {
    ($(
        $(#[$attribute:meta])*
        $type:ident { $($(#[$variant_attribute:meta])* $variant:ident = $word:literal,)+ }
    )+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type { $($(#[$variant_attribute])* $variant,)+ }

        impl Value for $type {
            const KIND: Kind = Kind::Choice(&[$($word),+]);

            fn parse(text: &str, _: &Kind) -> Option<Self> {
                match text {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn text(&self) -> String {
                match self { $(Self::$variant => $word,)+ }.to_owned()
            }
        }
    )+};
}

choices! {
    /// How the agent writes its log.
    LogFormat {
        /// Lines for people.
        Human = "human",
        /// One JSON object a line.
        Json = "json",
        /// To the systemd journal, with fields.
        Journald = "journald",
    }

    /// Whether a GPU that is unfit for use keeps its place in what YARN is shown.
    KeepLostGpus {
        /// Where YARN knows a GPU by its place: with LinuxContainerExecutor.
        Auto = "auto",
        /// Yes.
        Yes = "yes",
        /// No: it is left out.
        No = "no",
    }

    /// What YARN is given as the minor number of a MIG slice.
    MigMinor {
        /// That of its GPU.
        Gpu = "gpu",
        /// That of its GPU instance's device below `/dev/nvidia-caps`.
        Capability = "capability",
    }

    /// Whether a user who is in no container may use a GPU that nobody holds.
    Unleased {
        /// No: a lease is needed.
        Deny = "deny",
        /// Yes.
        Allow = "allow",
    }

    /// Whether queries run on the GPU.
    GpuMode {
        /// As far as they can.
        On = "on",
        /// Not at all.
        Off = "off",
        /// Not at all, but EXPLAIN says what would.
        ExplainOnly = "explain_only",
        /// What can't is refused.
        Required = "required",
    }

    /// What is said of a plan and the GPU.
    GpuExplain {
        /// Nothing.
        None = "NONE",
        /// What does not run there, and why.
        NotOnGpu = "NOT_ON_GPU",
        /// Also what does.
        All = "ALL",
    }

    /// How the pool of a GPU's memory is sized.
    PoolSizing {
        /// A first size and one up to which it grows, both shares of all memory.
        Classic = "classic",
        /// One size, a share of the free memory.
        Current = "current",
    }

    /// Who hands out a GPU's memory.
    PoolKind {
        /// An arena for each stream over one pool.
        Arena = "ARENA",
        /// One pool for all streams.
        Default = "DEFAULT",
        /// The driver's own stream-ordered pool.
        Async = "ASYNC",
        /// The driver, for each buffer.
        None = "NONE",
    }

    /// Where each allocation of a GPU's memory is logged.
    PoolDebug {
        /// Nowhere.
        None = "NONE",
        /// To standard output.
        Stdout = "STDOUT",
        /// To standard error.
        Stderr = "STDERR",
    }
}
