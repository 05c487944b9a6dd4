// Lets a reader in: a token from the address or the form becomes a cookie. Paths are relative, as a page may lie below a run's name.
const $ = id => document.getElementById(id);
const RETRY_MS = 2000;

async function login(token) {
  const answer = await fetch("api/login", { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });
  return answer.ok;
}

// Calls page.follow() once the reader may read; page.link(state, text) shows the connection, page.main is hidden before.
export async function openPage(page) {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    await login(given).catch(() => false);
    // The token is in the cookie now; it need not stay in the address.
    window.history.replaceState(null, "", location.pathname);
  }
  const answer = await fetch("api/login", { cache: "no-store" }).catch(() => null);
  if (answer === null) { page.link("lost", "the server does not answer"); setTimeout(openPage, RETRY_MS, page); return; }
  if (answer.status === 401) {
    $("login").hidden = false;
    page.main.hidden = true;
    page.link("", "not logged in");
    $("token").focus();
    $("login").onsubmit = async event => {
      event.preventDefault();
      const right = await login($("token").value.trim()).catch(() => false);
      $("login-problem").textContent = right ? "" : "Wrong token.";
      if (right) { $("token").value = ""; openPage(page); }
    };
    return;
  }
  page.follow();
}
