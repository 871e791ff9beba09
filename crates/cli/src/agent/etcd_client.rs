//! Requests to the members of etcd, over its JSON gateway.

use std::path::Path;
use std::time::Duration;

use adit_fleet::{EtcdAddress, EtcdRefusal, MAX_ETCD_ANSWER, etcd_token};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use zeroize::Zeroizing;

use crate::cli::EtcdTlsArgs;
use crate::failure::{self, Failure, bail};

/// How long it may take to connect to a member.
const TO_CONNECT: Duration = Duration::from_secs(2);
/// How long to look its name up, and how long it may take to answer.
const TO_ANSWER: Duration = Duration::from_secs(5);

/// How members are asked.
pub(super) struct EtcdClient {
    agent: ureq::Agent,
    /// User and password.
    user: Option<(String, Zeroizing<String>)>,
}

/// A member, and the token that it gave.
pub(super) struct EtcdMember<'a> {
    pub(super) endpoint: &'a str,
    pub(super) token: Zeroizing<String>,
}

impl EtcdClient {
    /// Reads the files that the arguments name, and the user from the environment.
    pub(super) fn new(args: &EtcdTlsArgs, address: &EtcdAddress) -> failure::Result<Self> {
        // What a member says to a first connection decides nothing: there is one implementation.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut tls = TlsConfig::builder();
        match &args.etcd_ca {
            Some(path) => {
                let authorities = certificates(path)?;
                let authorities = authorities
                    .iter()
                    .map(|it| Certificate::from_der(it).to_owned());
                tls = tls.root_certs(RootCerts::from(authorities));
            }
            None if address.endpoints.iter().any(|it| it.starts_with("https:")) => bail!(
                Mistake,
                "https needs --etcd-ca FILE, the authorities that sign the members' certificates; those of this system may be \
                 /etc/ssl/certs/ca-certificates.crt"
            ),
            None => {}
        }
        if let (Some(path), Some(key_path)) = (&args.etcd_cert, &args.etcd_key) {
            tls = tls.client_cert(Some(own_certificate(path, key_path)?));
        }
        let config = ureq::Agent::config_builder()
            .timeout_resolve(Some(TO_ANSWER))
            .timeout_connect(Some(TO_CONNECT))
            .timeout_send_request(Some(TO_ANSWER))
            .timeout_send_body(Some(TO_ANSWER))
            .timeout_recv_response(Some(TO_ANSWER))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .tls_config(tls.build());
        let variable = |name: &str| std::env::var(name).ok().filter(|it| !it.is_empty());
        let password = || Zeroizing::new(variable("ADIT_ETCD_PASSWORD").unwrap_or_default());
        Ok(Self {
            agent: config.build().into(),
            user: variable("ADIT_ETCD_USER").map(|user| (user, password())),
        })
    }

    /// A member with a token for the user, if there is one.
    pub(super) fn member<'a>(&self, endpoint: &'a str) -> Result<EtcdMember<'a>, EtcdRefusal> {
        let mut member = EtcdMember {
            endpoint,
            token: Zeroizing::default(),
        };
        if let Some((user, password)) = &self.user {
            let asked = json!({ "name": user, "password": password.as_str() });
            let answer = self.ask(&member, "auth/authenticate", &asked)?;
            *member.token = etcd_token(&answer)?;
        }
        Ok(member)
    }

    /// The whole answer of the first member that gives one.
    pub(super) fn ask_any(
        &self,
        address: &EtcdAddress,
        path: &str,
        asked: &Value,
    ) -> Result<Zeroizing<Vec<u8>>, EtcdRefusal> {
        let mut refusal = EtcdRefusal::Failed("it has no member".into());
        for endpoint in &address.endpoints {
            let answer = self.member(endpoint);
            match answer.and_then(|member| self.ask(&member, path, asked)) {
                Ok(answer) => return Ok(answer),
                Err(EtcdRefusal::Failed(why)) => {
                    refusal = EtcdRefusal::Failed(format!("{endpoint}: {why}"));
                }
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }

    /// The answer to a request, as it comes, for at most this time.
    pub(super) fn stream(
        &self,
        member: &EtcdMember<'_>,
        (path, asked): (&str, &Value),
        within: Duration,
    ) -> Result<ureq::Body, EtcdRefusal> {
        let mut request = self.agent.post(format!("{}/v3/{path}", member.endpoint));
        if !member.token.is_empty() {
            request = request.header("Authorization", member.token.as_str());
        }
        let request = request.config().timeout_recv_body(Some(within)).build();
        let asked = Zeroizing::new(asked.to_string());
        let answer = request.send(asked.as_bytes()).map_err(failed)?;
        Ok(answer.into_body())
    }

    /// The whole answer to a request.
    pub(super) fn ask(
        &self,
        member: &EtcdMember<'_>,
        path: &str,
        asked: &Value,
    ) -> Result<Zeroizing<Vec<u8>>, EtcdRefusal> {
        let body = self.stream(member, (path, asked), TO_ANSWER)?;
        let most = u64::try_from(MAX_ETCD_ANSWER).unwrap_or(u64::MAX);
        let answer = body.into_with_config().limit(most).read_to_vec();
        answer.map(Zeroizing::new).map_err(failed)
    }
}

fn failed(error: ureq::Error) -> EtcdRefusal {
    match error {
        ureq::Error::BodyExceedsLimit(_) => EtcdRefusal::TooLong,
        error => EtcdRefusal::Failed(error.to_string()),
    }
}

/// The certificates of a PEM file, one at least.
fn certificates(path: &Path) -> failure::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(|error| cannot_read(path, &error))?;
    match found.is_empty() {
        true => bail!(
            Mistake,
            "{}: there is no certificate in it: name a file in PEM, with a line -----BEGIN CERTIFICATE-----",
            path.display()
        ),
        false => Ok(found),
    }
}

/// The certificate and the key by which members know this client.
fn own_certificate(path: &Path, key_path: &Path) -> failure::Result<ClientCert> {
    let chain = certificates(path)?;
    let key =
        PrivateKeyDer::from_pem_file(key_path).map_err(|error| cannot_read(key_path, &error))?;
    let text = std::fs::read(key_path).map(Zeroizing::new);
    let of_ureq = text.ok().and_then(|text| PrivateKey::from_pem(&text).ok());
    let own: Vec<_> = chain
        .iter()
        .map(|it| Certificate::from_der(it).to_owned())
        .collect();
    let provider = rustls::crypto::ring::default_provider();
    match (CertifiedKey::from_der(chain, key, &provider), of_ureq) {
        (Ok(_), Some(key)) => Ok(ClientCert::new_with_certs(&own, key)),
        (checked, _) => {
            let why = checked.err().map(|error| format!(": {error}"));
            bail!(
                Mistake,
                "{} is no key of the certificate in {}{}",
                key_path.display(),
                path.display(),
                why.unwrap_or_default()
            )
        }
    }
}

fn cannot_read(path: &Path, error: &rustls::pki_types::pem::Error) -> Failure {
    Failure::Mistake(format!("cannot read {}: {error}", path.display()))
}
