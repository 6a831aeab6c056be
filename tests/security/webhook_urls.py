"""Addresses and URLs that are refused, and such as are not."""

PUBLIC = "93.184.216.34"

PRIVATE_ADDRESSES = [
    *("127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "169.254.0.1", "100.64.0.1", "100.100.100.200", "0.0.0.0", "0.1.2.3"),
    *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.0.0.192", "192.0.2.1"),
    *("198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "168.63.129.16"),
    *("::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:a9fe:a9fe"),
    *("fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "100::1", "2001:db8::1", "3fff::1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::10.0.0.1", "64:ff9b:1::8.8.8.8"),
    *("2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:c0a8:101::", "2001:0:4136:e378:8000:63bf:f5ff:fffe"),
    *("2001:10::1", "5f00::1", "2600::5efe:10.0.0.1", "2600::200:5efe:192.168.0.1"),
]
PUBLIC_ADDRESSES = [
    *(PUBLIC, "8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:2800:220:1::1", "2a00:1450::5"),
    *("64:ff9b::808:808", "2002:808:808::1"),
]

# Each of these is, or may be read as, a way to this machine or into its network.
REFUSED_URLS = [
    *("http://127.0.0.1/", "http://127.1/", "http://127.0.1/", "http://2130706433/", "http://0x7f000001/"),
    *("http://0x7f.0.0.1/", "http://0177.0.0.1/", "http://017700000001/", "http://127.0.0.1./", "http://0/"),
    *(
        "http://0x/",
        "http://0x7f.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "http://[::]/",
    ),
    *(
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[fe80::1%25eth0]/",
        "http://[fe80::1%1]/",
    ),
    *(
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[::127.0.0.1]/",
        "http://::1/",
        "http://[127.0.0.1]/",
        "http://[v1.fe]/",
    ),
    *("http://localhost/", "http://LOCALHOST/", "http://localhost./", "http://a.localhost/"),
    "http://localhost.localdomain/",
    *("http://example.com@127.0.0.1/", "http://example.com:80@127.0.0.1/", "http://127.0.0.1#@example.com/"),
    *("http://127.0.0.1?@example.com/", "http://127.0.0.1\\@example.com/", "http://a@b@example.com/"),
    *("http://example.com\\.evil.com/", "http://example.com%00.evil/", "http://example.com%2f@127.0.0.1/"),
    *("http://\u2460\u2461\u2466.0.0.1/", "http://127\u30020\u30020\u30021/", "http://\uff4cocalhost/"),
    *("http://ex\u00e4mple.com/", "http://exam ple.com/", "http://example.com /", " http://example.com/"),
    *(
        "http://exam\tple.com/",
        "http://example.com/\r\nHost: x",
        "http://example.com/\0",
        "http://exa\nmple.com/",
    ),
    *(
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "javascript:alert(1)",
        "//example.com/",
    ),
    *(
        "example.com",
        "/hook",
        "http:example.com",
        "http:/example.com",
        "http://",
        "https:///x",
        "",
        "http://@/",
    ),
    *(
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://example.com:x/",
        "http://example.com:-1/",
    ),
    *(
        "http://example.com:22/",
        "http://example.com:25/",
        "http://example.com:6379/",
        "http://example.com:5432/",
    ),
    *("http://" + "a" * 64 + ".com/", "http://" + "a." * 130 + "com/", "http://-a.com/", "http://a..com/"),
    *(
        "http://.example.com/",
        "http://*.example.com/",
        "http://exa!mple.com/",
        "http://[::1/",
        "http://::1]/",
    ),
    "http://example.com/" + "a" * 3000,
]
TAKEN_URLS = [
    *(
        "http://example.com",
        "https://example.com/a?b=c#d",
        "HTTPS://EXAMPLE.com:443/",
        "http://a_b.example.com/",
    ),
    *("https://user:word@example.com:8443/", "http://example.com:8080", "http://xn--exmple-cua.com/"),
    *(
        "http://8.8.8.8/",
        "https://[2606:2800:220:1::1]:8443/x",
        "http://example.com./",
        "http://1.example.com/",
    ),
    "https://token@example.com/\u00fcber",
]
