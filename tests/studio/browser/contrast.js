// The text with the least contrast to what lies under it: [ratio, where], by WCAG's formula.
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  const light = (colour) => colour.slice(0, 3).reduce((sum, one, i) => sum + linear(one / 255) * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (below, [r, g, b, a]) => [r, g, b].map((one, i) => one * a + below[i] * (1 - a));
  const under = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const one = rgb(getComputedStyle(at).backgroundColor);
      if (one[3]) layers.push(one);
      if (one[3] === 1) break;
    }
    return layers.reverse().reduce(over, [255, 255, 255]);
  };
  const texts = "h1, h2, p, a, b, dt, dd, th, td, label, button, .soft, .pill, .outcome, .status, .tick, .mono, .tok, .chip";
  const found = [];
  for (const node of document.querySelectorAll(texts)) {
    if (!node.textContent.trim() || !node.checkVisibility({ opacityProperty: true })) continue;
    if (node.closest("[aria-disabled=true], .cell")) continue;
    const style = getComputedStyle(node), below = under(node);
    const drawn = over(below, rgb(node instanceof SVGElement ? style.fill : style.color));
    const [dim, bright] = [light(drawn), light(below)].sort((a, b) => a - b);
    const where = `${node.tagName}.${node.className.baseVal ?? node.className}: ${node.textContent.slice(0, 30)}`;
    found.push([(bright + 0.05) / (dim + 0.05), where]);
  }
  return found.sort((a, b) => a[0] - b[0])[0];
}
