//! The short form of GPUs: `MODEL:COUNT[,mig=NxPROFILE[+NxPROFILE…]]`, or a topology file.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::model::Model;
use crate::topology::{GpuConfig, Topology};
use crate::{Error, mig};

/// One `--gpus` argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// So many GPUs of a model.
    Gpus(Box<GpuConfig>),
    /// A topology file.
    File(PathBuf),
}

impl Spec {
    /// What the spec stands for; reads the file if it is one.
    pub fn topology(&self) -> Result<Topology, Error> {
        match self {
            Self::Gpus(gpu) => {
                Ok(Topology { gpu: vec![GpuConfig::clone(gpu)], ..Topology::default() })
            }
            Self::File(path) => Topology::read(path),
        }
    }
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if Path::new(text).extension().is_some_and(|extension| extension == "toml") {
            return Ok(Self::File(text.into()));
        }
        let refuse = |reason: &str| Error::Spec { spec: text.into(), reason: reason.into() };
        let (gpus, options) = match text.split_once(',') {
            Some((gpus, options)) => (gpus, Some(options)),
            None => (text, None),
        };
        let (model, count) = gpus.split_once(':').ok_or_else(|| refuse("it has no ':COUNT'"))?;
        let model = Model::find(model)?;
        let count = count
            .parse()
            .ok()
            .filter(|count| (1..=Topology::MAX_GPUS as u32).contains(count))
            .ok_or_else(|| refuse("COUNT is a number from 1 to 64"))?;
        let layout = options
            .map(|options| {
                options.strip_prefix("mig=").ok_or_else(|| refuse("the only option is 'mig='"))
            })
            .transpose()?;
        if let Some(layout) = layout {
            mig::place(model, layout)?;
        }
        Ok(Self::Gpus(Box::new(GpuConfig {
            model: model.key.to_owned(),
            count,
            mig: layout.map(str::to_owned),
            ..GpuConfig::default()
        })))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn models_counts_and_slices() {
        let Spec::Gpus(gpu) = "h200:2".parse().unwrap() else { panic!("no GPUs") };
        assert_eq!((gpu.model.as_str(), gpu.count, gpu.mig), ("h200", 2, None));
        let Spec::Gpus(gpu) = "a100:1,mig=3x2g.10gb+1x1g.5gb".parse().unwrap() else {
            panic!("no GPUs")
        };
        assert_eq!(gpu.mig.as_deref(), Some("3x2g.10gb+1x1g.5gb"));
        assert_eq!("node.toml".parse::<Spec>().unwrap(), Spec::File("node.toml".into()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("", "':COUNT'"),
            ("h200", "':COUNT'"),
            ("h200:", "from 1"),
            ("h200:0", "from 1"),
            ("h200:-1", "from 1"),
            ("h200:65", "from 1 to 64"),
            ("k80:1", "no GPU model 'k80'"),
            ("h200:1,gim=1", "'mig='"),
            ("a100:1,mig=9x1g.5gb", "from 1 to 7"),
            ("t4:1,mig=1x1g.5gb", "no MIG"),
        ] {
            let error = text.parse::<Spec>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_spec_or_an_error(text in "[a-z0-9.:,=+x -]{0,40}|\\PC{0,20}") {
            if let Ok(Spec::Gpus(gpu)) = text.parse::<Spec>() {
                prop_assert!(gpu.count >= 1);
                let topology = Topology { gpu: vec![*gpu], ..Topology::default() };
                prop_assert!(topology.gpus().is_ok());
            }
        }

        #[test]
        fn any_layout_is_placed_or_refused(
            parts in prop::collection::vec((1_u32..4, 0_usize..7), 0..4),
        ) {
            let model = Model::find("h100").unwrap();
            let layout = parts
                .iter()
                .map(|(count, profile)| format!("{count}x{}", model.mig[*profile].name))
                .collect::<Vec<_>>()
                .join("+");
            if let Ok(slices) = mig::place(model, &layout) {
                let mut taken = 0_u8;
                for slice in &slices {
                    let mask = (((1_u16 << slice.profile.memory_slices) - 1) << slice.start) as u8;
                    prop_assert_eq!(taken & mask, 0, "{} overlaps", layout);
                    taken |= mask;
                }
                let wanted: u32 = parts.iter().map(|(count, _)| count).sum();
                prop_assert_eq!(slices.len() as u32, wanted);
            }
        }
    }
}
