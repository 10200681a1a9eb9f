"""Who may ask the studio: the token, the host's name, the page's origin; and nothing outside a run is ever opened."""

import json

import pytest

from studio_runs import make_studio_run, serving


def test_without_the_token_nothing_is_answered(client):
    for path in ("/", "/api/runs", "/static/main.js", "/api/events"):
        status, headers, body = client.ask(path, Cookie=None)
        assert (status, b"token" in body) == (401, True), path
        assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert client.ask("/api/runs", Cookie=client.cookie + "x")[0] == 401
    assert client.ask("/api/runs", Cookie=None, Authorization="Bearer a-token")[0] == 200
    assert client.ask("/api/runs", Cookie=None, Authorization="Bearer another")[0] == 401


def test_the_printed_address_signs_in_and_hides_the_token(client):
    status, headers, _ = client.ask("/?token=a-token&x=1", Cookie=None)
    assert (status, headers["Location"]) == (303, "/?x=1")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert client.ask("/", Cookie=cookie.partition(";")[0])[0] == 200
    assert client.ask("/?token=wrong", Cookie=None)[0] == 401


def test_a_sign_in_never_leads_to_another_site(client):
    status, headers, _ = client.ask("//elsewhere.example/?token=a-token", Cookie=None)
    assert status == 303
    assert headers["Location"].startswith("/elsewhere.example")


@pytest.mark.parametrize("host", ["attacker.example", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_host_name_is_refused(client, host):
    assert client.ask("/api/runs", Host=host)[0] == 403


def test_the_names_of_this_machine_are_accepted(client):
    for name in ("127.0.0.1", "localhost"):
        assert client.ask("/api/runs", Host=f"{name}:{client.studio.port}")[0] == 200


def test_pages_of_other_origins_are_refused(client):
    assert client.ask("/api/runs", Origin="http://attacker.example")[0] == 403
    assert client.ask("/api/runs", Origin="null")[0] == 403
    assert client.ask("/api/runs", Origin=f"http://127.0.0.1:{client.studio.port}")[0] == 200


def test_a_form_of_another_page_cannot_post(client):
    status, _, _ = client.ask("/api/runs", "POST", b"a=1", Content_Type="application/x-www-form-urlencoded")
    assert status == 415


def test_every_answer_has_the_policy(client):
    for path in ("/", "/api/runs", "/static/main.js", "/nowhere"):
        _, headers, _ = client.ask(path)
        policy = headers["Content-Security-Policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/api/runs/..%2f..%2fetc/series",
        "/api/runs/{run}/trajectory/..%2f..%2f..%2fetc%2fpasswd",
        "/api/runs/{run}/trajectory/train-1/../../0",
        "/api/runs/{run}/compare?name=../../../etc/passwd",
    ],
)
def test_paths_that_lead_elsewhere_are_not_found(client, first, path):
    status, _, body = client.ask(path.format(run=first))
    assert status == 404
    assert b"root:" not in body
    assert b"Invariant" not in body


def test_links_out_of_a_run_are_refused_and_the_rest_opens(tmp_path):
    run = make_studio_run(tmp_path / "runs" / "linked")
    other = make_studio_run(tmp_path / "elsewhere")
    inside = run.trajectory_file("train", 3)
    inside.unlink()
    inside.symlink_to(other.trajectory_file("train", 3))
    run.metrics.unlink()
    run.metrics.symlink_to(other.metrics)
    with serving(tmp_path / "runs") as client:
        name = client.run_id("linked")
        found = client.get(f"/api/runs/{name}/trajectories")
        assert {row["step"] for row in found["rows"]} == {0, 1, 2}
        assert ["leads out" in problem for problem in found["problems"]] == [True]
        status, _, body = client.ask(f"/api/runs/{name}/trajectory/train-3/0/0")
        assert (status, "leads out" in json.loads(body)["error"]) == (404, True)
        about = client.get(f"/api/runs/{name}")
        assert about["metrics"] == []
        assert any("metrics.jsonl" in problem and "leads out" in problem for problem in about["problems"])


def test_unknown_things_are_one_line(client, first):
    for path in ("/api/runs/none-123456", f"/api/runs/{first}/trajectory/train-9/0/0", "/api/nothing"):
        status, _, body = client.ask(path)
        assert status == 404
        assert "\n" not in json.loads(body)["error"]
    status, _, body = client.ask(f"/api/runs/{first}/trajectories?stpe=1")
    assert "did you mean 'step'" in json.loads(body)["error"]
