use super::*;

#[test]
fn forwards_and_ports_are_read_and_mistakes_explained() {
    let to = |text| forward(text).map(|it| (it.is_udp, it.bind.to_string(), it.target.to_string()));
    for (text, is_udp, bind, target) in [
        (
            "tcp:8080=10.0.0.5:80",
            false,
            "127.0.0.1:8080",
            "10.0.0.5:80",
        ),
        ("tcp:0.0.0.0:8080=web:80", false, "0.0.0.0:8080", "web:80"),
        (
            "udp:[::1]:53=[fd00::1]:53",
            true,
            "[::1]:53",
            "[fd00::1]:53",
        ),
        (
            "udp:localhost:53=dns.example:53",
            true,
            "127.0.0.1:53",
            "dns.example:53",
        ),
    ] {
        assert_eq!(to(text), Ok((is_udp, bind.into(), target.into())), "{text}");
    }
    for text in [
        "",
        "8080=10.0.0.5:80",
        "sctp:1=2:3",
        "tcp:1",
        "tcp:1=2",
        "tcp:x=10.0.0.5:80",
        "tcp:1=a b:80",
        "tcp:1=:80",
        "udp:unix:/x=10.0.0.5:80",
        "tcp:1=web:65536",
    ] {
        assert!(
            to(text).is_err_and(|error| error.contains("expected")),
            "{text}"
        );
    }
}

#[test]
fn only_this_host_comes_to_a_proxy_without_a_password() {
    for text in [
        "1080",
        "127.0.0.1:1080",
        "[::1]:1080",
        "localhost:1080",
        "unix:/run/x",
    ] {
        assert!(own_port(text).is_ok(), "{text}");
    }
    for text in [":1080", "0.0.0.0:1080", "192.0.2.1:1080", "[::]:1080"] {
        let error = own_port(text).expect_err(text);
        assert!(error.contains("there is no password"), "{error}");
        assert!(port(text).is_ok(), "{text}");
    }
    for text in ["", "x", "unix:", "host:1080", "1.2.3.4", "70000", ":x"] {
        let error = port(text).expect_err(text);
        assert!(error.contains("expected"), "{text}: {error}");
    }
}
