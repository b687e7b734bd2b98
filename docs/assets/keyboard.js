// What can be clicked on a phone can be reached by keyboard too: menu and search are labels of hidden boxes there.
for (const name of ["drawer", "search"]) {
  const label = document.querySelector(`label.md-header__button[for="__${name}"]`);
  label.tabIndex = 0; // Enter clicks what is a label and has the focus: the theme sees to that
  label.setAttribute("role", "button");
  label.setAttribute("aria-label", { drawer: "Menu", search: "Search" }[name]);
}
for (const label of document.querySelectorAll(".md-nav--primary label.md-nav__title[for]")) label.tabIndex = 0; // back
document.getElementById("__drawer").addEventListener("change", (event) => {
  const seen = (link) => link.getBoundingClientRect().left >= 0 && link.checkVisibility({ visibilityProperty: true });
  const links = [...document.querySelectorAll(".md-nav--primary a[href], .md-nav--primary label[tabindex]")];
  if (event.target.checked) setTimeout(() => links.find(seen)?.focus(), 400); // the menu has come in by then
});
