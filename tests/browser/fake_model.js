// What anywidget does, in a page without a notebook: a model that views share, and a box for what goes to Python.
class FakeModel {
  constructor(state) {
    this.state = state;
    this.pending = {};
    this.outbox = [];
    this.listeners = new Map();
    this.is_dead = false;
  }

  get(name) {
    return this.state[name];
  }

  set(name, value) {
    this.pending[name] = value;
    this.take({ [name]: value });
  }

  save_changes() {
    this.post({ method: "update", state: this.pending, buffer_paths: [] });
    this.pending = {};
  }

  send(content) {
    this.post({ method: "custom", content });
  }

  post(message) {
    if (this.is_dead) throw new Error("Kernel is dead");
    this.outbox.push(message);
  }

  on(event, callback) {
    this.listeners.set(event, [...(this.listeners.get(event) ?? []), callback]);
  }

  off(event, callback) {
    this.listeners.set(event, (this.listeners.get(event) ?? []).filter((each) => each !== callback));
  }

  /** What comes from Python, or from a view: all of it is there before anybody hears of it. */
  take(news) {
    const changed = Object.keys(news).filter((name) => JSON.stringify(news[name]) !== JSON.stringify(this.state[name]) || news[name] instanceof DataView);
    Object.assign(this.state, news);
    for (const name of changed) this.fire(`change:${name}`, this.state[name]);
  }

  fire(event, ...args) {
    for (const callback of [...(this.listeners.get(event) ?? [])]) callback(...args);
  }
}

const bytes_of = (text) => new DataView(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer);

/** Text in `binary` is base64. */
globalThis.fake = {
  models: [],
  views: [],
  async start(esm, states) {
    for (const { plain, binary } of states) {
      const model = new FakeModel({ ...plain, ...Object.fromEntries(Object.entries(binary).map(([name, text]) => [name, bytes_of(text)])) });
      this.models.push(model);
    }
    this.widget = (await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })))).default;
    for (const model of this.models) this.widget.initialize({ model });
  },
  show(model, place) {
    const el = document.getElementById(place);
    el.unmount = this.widget.render({ model: this.models[model], el });
  },
  take(model, { plain, binary }) {
    this.models[model].take({ ...plain, ...Object.fromEntries(Object.entries(binary).map(([name, text]) => [name, bytes_of(text)])) });
  },
  send(model, content, buffers) {
    this.models[model].fire("msg:custom", content, buffers.map(bytes_of));
  },
  // What `ipywidgets.jslink` does to a trait of two models.
  link(name) {
    const [one, other] = this.models;
    const follow = (from, to) => {
      to.set(name, from.get(name));
      to.save_changes();
    };
    one.on(`change:${name}`, () => follow(one, other));
    other.on(`change:${name}`, () => follow(other, one));
    follow(one, other);
  },
  drain: (model) => fake.models[model].outbox.splice(0),
};
