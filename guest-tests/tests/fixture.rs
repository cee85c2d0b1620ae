//! Example tests that use the fixture. Because they boot guests, only the `73-fixtures` step of `ci/test` runs them.

#![allow(clippy::unwrap_used, reason = "a panic is how these tests fail")]

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use guest_tests::fixture::{Kind, Pair};

/// All assertions use the same pair, because booting it takes most of the time.
#[test]
fn pair_exchanges_messages_and_runs_programs() -> anyhow::Result<()> {
    let pair = Pair::boot(Kind::Mthca)?;
    assert_eq!((pair.a.name().as_str(), pair.b.name().as_str()), ("a", "b"));
    assert_eq!(pair.a.rdma_device(), Some("mthca0"));

    let server =
        pair.a.command("ibv_rc_pingpong").args(["-c", "-n", "100"]).stdout(Stdio::piped()).spawn()?;
    let client = pair.b.run_until_success(&["ibv_rc_pingpong", "-c", "-n", "100", "a"])?;
    let server = server.wait_with_output()?;
    assert!(server.status.success() && client.contains("100 iters in "), "{client}");

    let mut echo = pair.b.command("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    echo.stdin.take().unwrap().write_all(b"to guest b")?;
    let mut answer = String::new();
    echo.stdout.take().unwrap().read_to_string(&mut answer)?;
    assert!(echo.wait()?.success());
    assert_eq!(answer, "to guest b");

    let error = pair.a.run(&["sh", "-c", "echo why >&2; exit 3"]).unwrap_err().to_string();
    assert!(
        error.contains("guest a") && error.contains("exit status: 3") && error.contains("why"),
        "{error}"
    );
    Ok(())
}
