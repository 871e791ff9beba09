//! Requests to the members of etcd, over its JSON gateway.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use adit_fleet::{
    EtcdAddress, EtcdChanges, EtcdPair, EtcdRefusal, MAX_ETCD_ANSWER, PAGE, etcd_page, etcd_token,
    range_request, watch_line, watch_request,
};
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

/// How long a watch is: a member that hangs holds up a change no longer.
const WATCH: Duration = Duration::from_secs(20);

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

    /// Lists all keys of a prefix as of one revision, which is returned, a page at a time.
    pub(super) fn list(
        &self,
        member: &EtcdMember<'_>,
        prefix: &str,
        mut tell: impl FnMut(Vec<EtcdPair>) -> Result<(), EtcdRefusal>,
    ) -> Result<i64, EtcdRefusal> {
        let mut behind: Option<(Vec<u8>, i64)> = None;
        let (mut most, mut has_values) = (PAGE, true);
        loop {
            let after = behind.as_ref().map(|(key, at)| (key.as_slice(), *at));
            let asked = range_request(prefix, after, most, has_values);
            let answer = self.ask(member, "kv/range", &asked);
            let page = match answer.and_then(|answer| etcd_page(&answer, has_values)) {
                Err(EtcdRefusal::TooLong) if most > 1 => {
                    most = most.div_ceil(8);
                    continue;
                }
                // One value alone.
                Err(EtcdRefusal::TooLong) if has_values => {
                    has_values = false;
                    continue;
                }
                page => page?,
            };
            (most, has_values) = ((2 * most).min(PAGE), true);
            let revision = after.map_or(page.revision, |(_, at)| at);
            let last = page.pairs.last().map(|(key, _)| key.clone());
            tell(page.pairs)?;
            match last {
                Some(last) if page.has_more => behind = Some((last, revision)),
                _ => return Ok(revision),
            }
        }
    }

    /// Tells of changes of a prefix from a revision on, for [`WATCH`]: once it has begun, and then as they come.
    pub(super) fn watch(
        &self,
        member: &EtcdMember<'_>,
        prefix: &str,
        first: i64,
        mut tell: impl FnMut(EtcdChanges) -> Result<(), EtcdRefusal>,
    ) -> Result<(), EtcdRefusal> {
        let asked = watch_request(prefix, first);
        let body = self.stream(member, ("watch", &asked), WATCH)?;
        let stream = body.into_with_config().limit(u64::MAX).reader();
        let mut lines = BufReader::new(stream);
        let mut line = Zeroizing::new(Vec::new());
        let most = u64::try_from(MAX_ETCD_ANSWER).unwrap_or(u64::MAX);
        let (mut next, mut has_begun) = (first, false);
        loop {
            line.clear();
            let read = lines.by_ref().take(most).read_until(b'\n', &mut line);
            match read {
                Ok(1..) if line.ends_with(b"\n") => {}
                // A list finds out what is so long.
                Ok(_) if line.len() >= MAX_ETCD_ANSWER => return Err(EtcdRefusal::Gap),
                Ok(_) => return Err(EtcdRefusal::Failed("it ended the watch".into())),
                // Its time is over.
                Err(error) if has_begun && is_timeout(&error) => return Ok(()),
                Err(error) => return Err(EtcdRefusal::Failed(error.to_string())),
            }
            let changes = watch_line(&line, next)?;
            (has_begun, next) = (true, changes.next);
            tell(changes)?;
        }
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

fn is_timeout(error: &std::io::Error) -> bool {
    let inner = error.get_ref();
    let inner = inner.and_then(|inner| inner.downcast_ref::<ureq::Error>());
    error.kind() == std::io::ErrorKind::TimedOut || matches!(inner, Some(ureq::Error::Timeout(_)))
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
