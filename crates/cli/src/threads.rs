//! Which threads process packets, and on which CPUs: flags and environment variables.

use std::ffi::OsString;

use adit_engine::{Policy, ThreadSettings};
use clap::Args;
use clap::builder::PossibleValue;

use crate::failure::{Context, Result};

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Threads")]
pub(crate) struct ThreadArgs {
    /// Threads that process packets, at most; by default as many as CPUs
    #[arg(long, value_name = "N", env = "ADIT_SHARDS", hide_env_values = true,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) shards: Option<u16>,
    /// Which threads process an interface
    #[arg(
        long,
        value_name = "POLICY",
        env = "ADIT_POLICY",
        hide_env_values = true
    )]
    pub(crate) policy: Option<PolicyArg>,
    /// CPUs of all threads, such as 0-3,8 (`lscpu` has those of each NUMA node)
    #[arg(long, value_name = "LIST", env = "ADIT_CPUS", hide_env_values = true,
          value_parser = cpu_list)]
    pub(crate) cpus: Option<CpuList>,
}

/// A policy as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyArg(pub(crate) Policy);

impl clap::ValueEnum for PolicyArg {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self(Policy::Auto),
            Self(Policy::Inline),
            Self(Policy::Pipeline),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            Policy::Auto => "one thread; idle ones join where it is not enough and CPUs are idle",
            Policy::Inline => "one thread",
            Policy::Pipeline => "one thread takes and sends packets, others encrypt and decrypt",
        };
        Some(PossibleValue::new(self.0.name()).help(help))
    }
}

/// CPUs, as the user wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuList {
    text: String,
    cpus: Vec<usize>,
}

/// Numbers and ranges, as the kernel writes them.
fn cpu_list(text: &str) -> std::result::Result<CpuList, String> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let number = text.trim().parse::<usize>().ok();
            number
                .filter(|cpu| *cpu < 1 << 16)
                .ok_or_else(|| format!("`{range}` is no CPU and no range of CPUs; expected 0-3,8"))
        };
        cpus.extend(number(first)?..=number(last)?);
    }
    Ok(CpuList {
        text: text.to_owned(),
        cpus,
    })
}

impl ThreadArgs {
    /// Settings that these mean on this machine.
    pub(crate) fn settings(&self) -> Result<ThreadSettings> {
        let mut settings = ThreadSettings {
            policy: self.policy.map(|policy| policy.0).unwrap_or_default(),
            cpus: self.cpus.clone().map(|list| list.cpus),
            ..ThreadSettings::default()
        };
        let cpus = settings
            .count_cpus()
            .context(|| "cannot use the CPUs that were given".to_owned())?;
        settings.shards = self.shards.map_or(cpus, usize::from);
        Ok(settings)
    }

    /// The arguments that mean the same.
    pub(crate) fn to_args(&self) -> Vec<OsString> {
        let mut args = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                args.extend([name.into(), value.into()]);
            }
        };
        add("--shards", self.shards.map(|number| number.to_string()));
        let name = self.policy.map(|policy| policy.0.name().to_owned());
        add("--policy", name);
        add("--cpus", self.cpus.as_ref().map(|list| list.text.clone()));
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        let cpus = |text| cpu_list(text).map(|list| list.cpus);
        assert_eq!(cpus("0"), Ok(vec![0]));
        assert_eq!(cpus("0-2,8"), Ok(vec![0, 1, 2, 8]));
        for wrong in ["", "a", "1-", "3,,4", "-1", "99999"] {
            let error = cpus(wrong).expect_err(wrong);
            assert!(error.contains("expected 0-3,8"), "{error}");
        }
    }

    #[test]
    fn the_background_process_gets_the_same_settings() {
        let args = ThreadArgs {
            shards: Some(3),
            policy: Some(PolicyArg(Policy::Pipeline)),
            cpus: Some(cpu_list("0-1").expect("a list")),
        };
        let given = "--shards 3 --policy pipeline --cpus 0-1";
        assert_eq!(args.to_args().join(" ".as_ref()), *given);
    }
}
