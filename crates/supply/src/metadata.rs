//! What `cargo metadata` says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Where Adit is built for.
pub(crate) const PLATFORM: &str = "x86_64-unknown-linux-gnu";

pub(crate) struct Metadata {
    /// Those that Adit is built of, its own and the tests' included.
    pub(crate) packages: Vec<Package>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// `None` of Adit's own.
    pub(crate) source: Option<String>,
    /// As SPDX expression.
    pub(crate) license: String,
    /// What its Cargo.toml asks for: names and versions, without Adit's own.
    pub(crate) asks_for: Vec<(String, String)>,
    /// Packages that it is built with, as `name@version`; no dev-dependencies.
    pub(crate) built_with: Vec<String>,
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of the repository.
pub(crate) fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))
}

/// The cargo that runs this.
pub(crate) fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// What cargo prints when it runs with these arguments in this folder of the repository.
pub(crate) fn run_cargo(folder: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let output = Command::new(cargo())
        .args(arguments)
        .current_dir(root().join(folder))
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(output.stdout)
}

/// What `cargo metadata` prints.
pub(crate) fn ask(folder: &str, arguments: &[&str]) -> Result<Value, String> {
    let asked = ["metadata", "--format-version", "1", "--locked"];
    let said = run_cargo(folder, &[&asked, arguments].concat())?;
    serde_json::from_slice(&said).map_err(|error| error.to_string())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl Metadata {
    /// Everything in the workspaces of these folders, with all features.
    pub(crate) fn load_all(folders: &[&str]) -> Result<Self, String> {
        let mut packages: Vec<Package> = Vec::new();
        for folder in folders {
            for package in Self::ask(folder, &["--all-features"])?.packages {
                if !packages.iter().any(|known| known.id() == package.id()) {
                    packages.push(package);
                }
            }
        }
        Ok(Self { packages })
    }

    /// What this program of the product's workspace is built of.
    pub(crate) fn load_program(program: &str) -> Result<Self, String> {
        Ok(Self::ask(".", &[])?.of(program))
    }

    /// Asks cargo for what Adit's platform needs.
    fn ask(folder: &str, arguments: &[&str]) -> Result<Self, String> {
        let platform = ["--filter-platform", PLATFORM];
        Ok(Self::parse(&ask(folder, &[&platform, arguments].concat())?))
    }

    pub(crate) fn parse(json: &Value) -> Self {
        let of = |id: &Value| {
            let package = list(&json["packages"]).find(|package| package["id"] == *id);
            let package = package.unwrap_or(&Value::Null);
            format!("{}@{}", text(&package["name"]), text(&package["version"]))
        };
        let package = |package: &Value| {
            let node = list(&json["resolve"]["nodes"]).find(|node| node["id"] == package["id"]);
            let asks = list(&package["dependencies"]).filter(|asked| asked["path"].is_null());
            let built = list(&node.unwrap_or(&Value::Null)["deps"]).filter(|dependency| {
                list(&dependency["dep_kinds"]).any(|kind| kind["kind"] != "dev")
            });
            Package {
                name: text(&package["name"]),
                version: text(&package["version"]),
                source: package["source"].as_str().map(str::to_owned),
                license: text(&package["license"]),
                asks_for: asks
                    .map(|asked| (text(&asked["name"]), text(&asked["req"])))
                    .collect(),
                built_with: built.map(|dependency| of(&dependency["pkg"])).collect(),
            }
        };
        Self {
            packages: list(&json["packages"]).map(package).collect(),
        }
    }

    /// What the package of this name is built of.
    pub(crate) fn of(self, program: &str) -> Self {
        let mut wanted = BTreeSet::new();
        let first = self
            .packages
            .iter()
            .filter(|package| package.name == program);
        let mut next: Vec<String> = first.map(Package::id).collect();
        while let Some(id) = next.pop() {
            let package = self.packages.iter().find(|package| package.id() == id);
            if let Some(package) = package.filter(|_| wanted.insert(id)) {
                next.extend(package.built_with.iter().cloned());
            }
        }
        let packages = self
            .packages
            .into_iter()
            .filter(|package| wanted.contains(&package.id()));
        Self {
            packages: packages.collect(),
        }
    }
}

impl Package {
    pub(crate) fn id(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }
}
