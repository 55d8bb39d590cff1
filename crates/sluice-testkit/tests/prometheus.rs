//! The Prometheus harness: a page is scraped and its series come back.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use sluice_testkit::Prometheus;

#[test]
fn a_page_is_scraped() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let page = "# TYPE things_total counter\nthings_total{kind=\"a\"} 3\nthings_total{kind=\"b\"} 4\n";
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{page}",
            page.len()
        );
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            // Whatever is asked, the page is the answer.
            let _ = stream.read(&mut head);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let prometheus = Prometheus::start(&[port]).unwrap();
    prometheus.wait_for_sum("things_total", |sum| (sum - 7.0).abs() < f64::EPSILON).unwrap();
    let series = prometheus.query("things_total{kind=\"b\"}").unwrap();
    assert_eq!((series.len(), series[0].value), (1, 4.0));
    assert_eq!(series[0].labels["job"], "sluice");
}
