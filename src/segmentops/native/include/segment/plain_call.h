// A whole call of the PyTorch binding on plain CPU tensors, as one Python built-in.
//
// For a dozen elements a call is mostly questions: is anything active that wants to see it, do the arguments fit, where
// is their memory, does one need a gradient. Asked from Python they take twice as long as the work. Everything here
// goes through the interpreter's and torch's public functions; there is no Python.h and nothing of torch's C++.
//
// What does not fit in any way goes to `general`, the Python function that explains errors and takes everything else:
// so no question here needs an answer but yes or no.
#pragma once
#include "builtin.h"
#include "pages.h"
#include "strided.h"

namespace seg { namespace {

constexpr int ARRAYS = 8;                     // operands, and results with scratch, of one operation
constexpr int DIMS = 16;
constexpr int DTYPES = 4;                     // of data: float32, float64, float16, bfloat16

// An array of an operation, as in a line of `algebra.SHAPES`.
struct Array {
  i64 lead;                                   // 'n' or 'm'
  i64 trail[2];                               // 'k', 'j' or 0
  i64 kind;                                   // 0: data, 1: kept, else 'l', 'i', 'd': int64, int32, float64; -1: null
};
// Objects of the process, by address. Python fills this, field by field (`torch/_fast.py`).
struct Exchanged;
struct World {
  void *tensor, *parameter, *integer;         // types
  int (*exchange)(void* tensor, Exchanged*);  // null: attributes are asked one by one
  // torch's own, on the address of what an at::Tensor is: a pointer, which a tensor's object holds at `implementation`.
  // Null: attributes are asked.
  i32 (*storage_size)(void* const* tensor, i64* bytes), (*storage_offset)(void* const* tensor, i64* scalars);
  i64 implementation;
  void* dtypes[DTYPES + 2];
  // attributes and methods
  void *data_ptr, *is_cpu, *is_neg, *dtype, *shape, *is_contiguous, *contiguous, *requires_grad, *new_empty, *version;
  void *needs_input_grad, *saved_tensors, *to_save, *rest;
  void *untyped_storage, *nbytes, *offset_of, *stride;
  void* dtype_only;                           // ("dtype",)
  void* questions[4];                         // functions: whether something is active that wants to see a call
  void *count_function_modes, *function_modes;
  void *forward_ad, *current_level;
  void *grad_enabled, *threads, *verdicts;
  const i64* setting;                         // the bits of `mode` that check idx; whether a verdict is remembered
  i64 look_size, pays_from;

  int dtype_of(const Array& s, int data) const;
};
struct Operation {
  const World* world;
  i64 operands, results, outputs;             // outputs: results and what the engine takes after them
  i64 matrices;
  i64 differentiable;                         // bits
  Array in[ARRAYS], out[ARRAYS];
  const void* function[DTYPES];               // null until known
  void* refuse;                               // raises the error for an idx that is not valid
};
// A way to call an operation.
struct Route {
  const Operation* op;
  i64 asks;                                   // whether the arguments may be anything, and a gradient may be needed
  i64 checks;                                 // whether idx is checked
  void *general, *apply;
};

struct Ref {                                  // owns a reference
  void* p = nullptr;
  Ref() {}
  explicit Ref(void* owned) : p(owned) {}
  Ref(const Ref&) = delete;
  ~Ref() { if (p) python->drop(p); }
  void* operator=(void* owned) { if (p) python->drop(p); return p = owned; }
  void* release() { void* r = p; p = nullptr; return r; }
};
SEG_INLINE void* method(void* o, void* name) { return python->call_method(name, &o, 1, nullptr); }
SEG_INLINE void* ask(void* function) { return python->call(function, nullptr, 0, nullptr); }
SEG_INLINE bool is_type(void* o, void* a, void* b) {
  const Ref t(python->type_of(o));
  return t.p == a || t.p == b;
}
// Whether it is True: 1, false: 0, an error: -1.
SEG_INLINE int truth(void* owned) {
  const Ref r(owned);
  return owned ? python->is_true(owned) : -1;
}
SEG_INLINE bool number(void* owned, i64& value) {
  const Ref r(owned);
  if (!owned) return false;
  value = python->as_int(owned);
  return value != -1 || !python->error();
}

// DLPack's exchange interface: everything about a tensor in one call, where torch has it.
struct Exchanged {
  char* data;
  i32 device, device_number, dims;
  u8 code, bits;
  u16 lanes;
  const i64 *size, *stride;
  u64 offset;
};
// The numbers of dtypes here; those below DTYPES are of data.
enum { LONG_INT = DTYPES, SHORT_INT, OTHER };
constexpr i64 SIZES[OTHER] = {4, 8, 2, 2, 8, 4};
SEG_INLINE int dtype_of(const Exchanged& x) {
  if (x.lanes != 1) return OTHER;
  if (x.code == 2) return x.bits == 32 ? 0 : x.bits == 64 ? 1 : x.bits == 16 ? 2 : OTHER;
  if (x.code == 4) return x.bits == 16 ? 3 : OTHER;
  if (x.code == 0) return x.bits == 64 ? LONG_INT : x.bits == 32 ? SHORT_INT : OTHER;
  return OTHER;
}
int dtype_of(const World& w, void* object) {
  for (int d = 0; d < OTHER; d++)
    if (w.dtypes[d] == object) return d;
  return OTHER;
}
int World::dtype_of(const Array& s, int data) const {
  switch (s.kind) {
    case 0: return data;
    case 1: return data > 1 ? 0 : data;       // no by-product in half precision
    case 'l': return LONG_INT;
    case 'i': return SHORT_INT;
    default: return 1;
  }
}

struct Tensor {
  void* object;                               // borrowed
  Ref copy;                                   // a contiguous one, where that is needed
  i64 p;
  int dtype;
  bool whole;                                 // contiguous
  i64 dims;
  i64 size[DIMS], stride[DIMS];               // strides: where it is not
  i64 last;                                   // where the last element is, counted from the first; -1: there is none

  // False: no plain CPU tensor, or an error, if one is set.
  bool read(const World& w, void* o, bool asks) {
    object = o;
    if (asks && truth(method(o, w.is_neg)) != 0) return false;
    return (w.exchange ? exchanged(w) : asked(w)) && (!asks || p) && held(w);
  }
  // Whether the storage holds all elements: it may have been freed or shrunk since the tensor was made.
  bool held(const World& w) const {
    i64 bytes, offset;
    if (last < 0 || dtype == OTHER) return true;
    if (!p) return false;
    if (w.storage_size) {
      void* const* const tensor = (void**)((char*)object + w.implementation);
      if (w.storage_size(tensor, &bytes) || w.storage_offset(tensor, &offset)) return false;
    } else {
      const Ref storage(method(object, w.untyped_storage));
      if (!storage.p || !number(method(storage.p, w.nbytes), bytes) || !number(method(object, w.offset_of), offset))
        return false;
    }
    return offset + last < bytes / SIZES[dtype];
  }
  bool exchanged(const World& w) {
    Exchanged x;
    if (w.exchange(object, &x) != 0 || x.device != 1 || x.dims > DIMS) return false;
    p = (i64)(x.data + x.offset);
    dtype = dtype_of(x);
    dims = x.dims;
    whole = true;
    last = 0;
    i64 step = 1;
    for (i64 d = dims - 1; d >= 0; d--) {
      size[d] = x.size[d];
      const i64 stride = x.stride ? x.stride[d] : step;
      whole &= size[d] == 1 || stride == step;
      last += (size[d] - 1) * stride;
      step *= size[d];
    }
    whole |= step == 0;
    if (step == 0) last = -1;
    for (i64 d = 0; d < dims && !whole; d++) stride[d] = x.stride[d];
    return true;
  }
  bool asked(const World& w) {
    if (!number(method(object, w.data_ptr), p) || truth(python->attribute(object, w.is_cpu)) != 1) return false;
    const Ref type(python->attribute(object, w.dtype)), shape(python->attribute(object, w.shape));
    if (!type.p || !shape.p) return false;
    dtype = seg::dtype_of(w, type.p);
    dims = python->length(shape.p);
    if (dims < 0 || dims > DIMS) return false;
    const Ref strides(method(object, w.stride));
    if (!strides.p) return false;
    bool none = false;
    last = 0;
    for (i64 d = 0; d < dims; d++) {
      if ((size[d] = python->as_int(python->item(shape.p, d))) < 0) return false;   // an error: not an int
      stride[d] = python->as_int(python->item(strides.p, d));
      last += (size[d] - 1) * stride[d];
      none |= size[d] == 0;
    }
    if (none) last = -1;
    const int all = truth(method(object, w.is_contiguous));
    whole = all == 1;
    return all >= 0;
  }
  Strided strided() const { return {(const void*)p, dims, size, whole ? nullptr : stride}; }
  bool settle(const World& w) {               // contiguous memory
    if (whole) return true;
    copy = method(object, w.contiguous);
    return copy.p && number(method(copy.p, w.data_ptr), p);
  }
};

SEG_INLINE bool quiet(const World& w) {
  for (void* question : w.questions)
    if (truth(ask(question)) != 0) return false;
  if (truth(ask(w.count_function_modes)) != 0 && truth(ask(w.function_modes)) != 0) return false;
  i64 level;
  return number(python->attribute(w.forward_ad, w.current_level), level) && level < 0;
}
// What k and j are. Without matrices, k stands for all dimensions of `rows` but its first.
struct Extents {
  i64 size[2];
  const Tensor* rows;
};
bool fits(const Operation& op, const Tensor* t, const Tensor& idx, i64 n, i64 m, Extents& e) {
  i64 bound[2] = {-1, -1};
  e = {{1, 1}, nullptr};
  if (idx.dims != 1) return false;
  for (i64 a = 0; a < op.operands; a++) {
    const Array& s = op.in[a];
    if (t[a].dtype != op.world->dtype_of(s, t->dtype) || t[a].dims < 1 || t[a].size[0] != (s.lead == 'n' ? n : m))
      return false;
    if (op.matrices || !s.trail[0]) {
      if (t[a].dims != 1 + (s.trail[0] != 0) + (s.trail[1] != 0)) return false;
      for (int d = 0; d < 2 && s.trail[d]; d++) {
        i64& size = bound[s.trail[d] == 'j'];
        if (size >= 0 && size != t[a].size[1 + d]) return false;
        e.size[s.trail[d] == 'j'] = size = t[a].size[1 + d];
      }
    } else if (!e.rows) {
      e.rows = t + a;
      for (i64 d = 1; d < t[a].dims; d++) e.size[0] *= t[a].size[d];
    } else {
      if (t[a].dims != e.rows->dims) return false;
      for (i64 d = 1; d < t[a].dims; d++)
        if (t[a].size[d] != e.rows->size[d]) return false;
    }
  }
  return true;
}
// Whether idx was found valid before, is unchanged since, and fits m segments: `_index.known`.
bool known(const World& w, const Tensor& idx, i64 m) {
  const Ref key(python->make_int((i64)idx.object));
  void* const entry = python->find(w.verdicts, key.p);     // (weak reference, version, pointer, last value)
  if (!entry) return false;
  python->keep(entry);
  const Ref hold(entry);
  const Ref alive(ask(python->item(entry, 0)));
  i64 version;
  return alive.p == idx.object && number(python->attribute(idx.object, w.version), version) &&
         python->as_int(python->item(entry, 1)) == version && python->as_int(python->item(entry, 2)) == idx.p &&
         python->as_int(python->item(entry, 3)) < m;
}
void* allocate(const Operation& op, const Array& s, const Tensor& like, void* n, void* m, const Extents& e) {
  const World& w = *op.world;
  const int dtype = w.dtype_of(s, like.dtype);
  void* args[DIMS + 2] = {like.object, s.lead == 'n' ? n : m};
  Ref sizes[DIMS];
  i64 count = 2;
  const auto add = [&](i64 size) { args[count] = (sizes[count - 2] = python->make_int(size)); count++; };
  if (!op.matrices && s.trail[0])
    for (i64 d = 1; d < e.rows->dims; d++) add(e.rows->size[d]);
  else
    for (int d = 0; d < 2 && s.trail[d]; d++) add(e.size[s.trail[d] == 'j']);
  args[count] = w.dtypes[dtype];
  return python->call_method(w.new_empty, args, count, dtype == like.dtype ? nullptr : w.dtype_only);
}

i64 bytes(const Operation& op, const Array& s, int data, i64 n, i64 m, const Extents& e) {
  i64 scalars = s.lead == 'n' ? n : m;
  for (int d = 0; d < 2 && s.trail[d]; d++) scalars *= e.size[s.trail[d] == 'j'];
  return scalars * SIZES[op.world->dtype_of(s, data)];
}

// The result, or null. `decided`: all questions were answered, so an error then is the call's own.
void* plain_call(const Route& r, void* const* args, i64 count, bool& decided) {
  const Operation& op = *r.op;
  const World& w = *op.world;
  void* const m_object = args[op.operands + 1];
  if (r.asks) {
    for (i64 a = 0; a < op.operands; a++)
      if (!is_type(args[a], w.tensor, w.parameter)) return nullptr;
    if (!is_type(args[op.operands], w.tensor, w.tensor) || !is_type(m_object, w.integer, w.integer) || !quiet(w))
      return nullptr;
  }
  Tensor t[ARRAYS];
  const i64 tensors = op.operands + 1;
  for (i64 a = 0; a < tensors; a++)
    if (!t[a].read(w, args[a], r.asks)) return nullptr;
  Tensor& idx = t[op.operands];
  const i64 n = idx.size[0], m = python->as_int(m_object);
  i64 mode = count > tensors + 1 ? python->as_int(args[tensors + 1]) : 0;
  if ((m == -1 || mode == -1) && python->error()) return nullptr;
  const int dtype = t[0].dtype;
  if (idx.dtype == LONG_INT) mode |= 1;
  else if (idx.dtype != SHORT_INT) return nullptr;
  Extents e;
  if (dtype >= DTYPES || !op.function[dtype] || m < r.asks || m >> 47 || !fits(op, t, idx, n, m, e)) return nullptr;

  if (r.checks) {
    if (n <= w.look_size || !w.setting[1]) mode |= w.setting[0];
    else if (!known(w, idx, m)) return nullptr;
  }
  if (r.asks) {
    int needed = 0;
    for (i64 a = 0; a < op.operands && !needed; a++)
      if (op.differentiable >> a & 1) needed = truth(python->attribute(args[a], w.requires_grad));
    if (needed) needed = truth(ask(w.grad_enabled));
    if (needed < 0) return nullptr;
    decided = true;
    if (needed) {
      const Ref mode_object(python->make_int(mode & ~1));
      void* all[ARRAYS + 3];
      for (i64 a = 0; a <= tensors; a++) all[a] = args[a];
      all[tensors + 1] = mode_object.p;
      return python->call(r.apply, all, tensors + 1 + r.checks, nullptr);
    }
  }

  i64 a[MOST], given = 0;
  Strided strided[ARRAYS];
  bool any = false;                           // data with strides
  for (i64 k = 0; k < op.operands; k++) any |= op.in[k].kind == 0 && !t[k].whole;
  if (any) mode |= STRIDED;
  for (i64 k = 0; k < tensors; k++) {
    if (any && k < op.operands && op.in[k].kind == 0) {
      strided[k] = t[k].strided();
      a[given++] = (i64)(strided + k);
      continue;
    }
    if (!t[k].settle(w)) return nullptr;
    a[given++] = t[k].p;
  }
  const Ref n_object(python->make_int(n));
  Ref outs[ARRAYS];
  for (i64 k = 0; k < op.outputs; k++) {
    a[given] = 0;
    if (op.out[k].kind >= 0) {
      outs[k] = allocate(op, op.out[k], t[0], n_object.p, m_object, e);
      if (!outs[k].p || !number(method(outs[k].p, w.data_ptr), a[given])) return nullptr;
      prefer_large_pages((void*)a[given], bytes(op, op.out[k], dtype, n, m, e));
    }
    given++;
  }
  const i64 work = n * e.size[0] * e.size[1];
  if (work >= w.pays_from) {
    const Ref size(python->make_int(work));
    i64 threads;
    void* const argument = size.p;
    if (!number(python->call(w.threads, &argument, 1, nullptr), threads)) return nullptr;
    mode |= threads << 8;
  }
  a[given++] = n;
  a[given++] = m;
  a[given++] = e.size[0];
  if (op.matrices) a[given++] = e.size[1];
  a[given++] = mode;
  i64 offence;
  if (work < BUSY) {
    offence = invoke<4>(op.function[dtype], a, given);
  } else {
    void* const state = python->release();
    offence = invoke<4>(op.function[dtype], a, given);
    python->acquire(state);
  }
  if (offence == NO_MEMORY) return python->no_memory();
  if (offence >= 0) {
    void* const what[2] = {idx.object, m_object};
    return python->call(op.refuse, what, 2, nullptr);
  }
  if (op.results == 1) return outs[0].release();
  void* const all = python->make_tuple(op.results);
  for (i64 k = 0; all && k < op.results; k++) python->set_item(all, k, outs[k].release());
  return all;
}

// A built-in: see `enter`.
void* plain(void* self, void* const* args, i64 count) {
  const Route& r = *(const Route*)python->as_int(self);
  const i64 least = r.op->operands + 2;
  if (count == least || count == least + 1) {
    bool decided = !r.asks;
    void* const result = plain_call(r, args, count, decided);
    if (result || decided && python->error()) return result;
    python->forget_error();
  }
  return python->call(r.general, args, count, nullptr);
}

// The autograd Function of an operation with one result: its forward and its backward as built-ins, too.
struct Plan {                                 // for one choice of the operands that need a gradient
  i64 saved, save[2 * ARRAYS];                // positions in (*operands, idx, *results)
  void* run;                                  // the backward, if it is one operation, called with arguments from
  i64 arguments, argument[2 * ARRAYS];        // (cotangent, *saved)
  i64 gradients, gradient[ARRAYS];            // which operands' gradients that returns
  i64 last;                                   // `run` has no backward of its own
};
struct Function {
  Route kernel;
  void* learn;                                // fills in the plan for a tuple of needs
  void *forward, *backward;                   // the same in Python
  const Plan* plans[1 << ARRAYS];
};
// The plan of a context; an error is set where there is none.
const Plan* plan_of(const Function& f, void* context, i64& inputs) {
  const Ref needs(python->attribute(context, f.kernel.op->world->needs_input_grad));
  if (!needs.p) return nullptr;
  inputs = python->length(needs.p);
  int mask = 0;
  for (i64 a = 0; a < f.kernel.op->operands; a++) mask |= (python->is_true(python->item(needs.p, a)) == 1) << a;
  if (!f.plans[mask]) Ref(python->call(f.learn, &needs.p, 1, nullptr));
  return f.plans[mask];
}
void* function_forward(void* self, void* const* args, i64 count) {
  const Function& f = *(const Function*)python->as_int(self);
  const Operation& op = *f.kernel.op;
  bool decided = true;
  Ref out(plain_call(f.kernel, args + 1, count - 1, decided));
  if (!out.p) return python->error() ? nullptr : python->call(f.forward, args, count, nullptr);
  const i64 tensors = op.operands + 1;
  i64 inputs;
  const Plan* const plan = plan_of(f, args[0], inputs);
  if (!plan) return nullptr;
  const Ref saved(python->make_tuple(plan->saved)), rest(python->make_tuple(count - 1 - tensors));
  for (i64 k = 0; k < plan->saved; k++) {
    void* const t = plan->save[k] < tensors ? args[1 + plan->save[k]] : out.p;
    python->keep(t);
    python->set_item(saved.p, k, t);
  }
  for (i64 k = 1 + tensors; k < count; k++) {
    python->keep(args[k]);
    python->set_item(rest.p, k - 1 - tensors, args[k]);
  }
  if (python->set_attribute(args[0], op.world->to_save, saved.p) != 0 ||
      python->set_attribute(args[0], op.world->rest, rest.p) != 0)
    return nullptr;
  return out.release();
}
void* function_backward(void* self, void* const* args, i64 count) {
  const Function& f = *(const Function*)python->as_int(self);
  const World& w = *f.kernel.op->world;
  i64 inputs;
  const Plan* const plan = plan_of(f, args[0], inputs);
  if (!plan) return nullptr;
  if (!plan->run || count != 2 || args[1] == python->none || plan->last && truth(ask(w.grad_enabled)) != 0)
    return python->call(f.backward, args, count, nullptr);
  const Ref saved(python->attribute(args[0], w.saved_tensors));
  if (!saved.p) return nullptr;               // before anything else is asked, which may forget the error
  const Ref rest(python->attribute(args[0], w.rest));
  if (!rest.p) return nullptr;
  void* values[2 * ARRAYS];
  for (i64 k = 0; k < plan->arguments; k++)
    values[k] = plan->argument[k] ? python->item(saved.p, plan->argument[k] - 1) : args[1];
  values[plan->arguments] = python->item(rest.p, 0);
  Ref found(python->call(plan->run, values, plan->arguments + 1, nullptr));
  if (!found.p) return nullptr;
  void* const all = python->make_tuple(inputs);
  for (i64 a = 0; a < inputs; a++) {
    void* value = python->none;
    for (i64 k = 0; k < plan->gradients; k++)
      if (plan->gradient[k] == a) value = plan->gradients == 1 ? found.p : python->item(found.p, k);
    python->keep(value);
    python->set_item(all, a, value);
  }
  return all;
}
// See `Place` in builtin.h.
constexpr Place PLAIN_LAYOUT[] = {
  SEG_SIZE(World), SEG_AT(World, tensor), SEG_AT(World, parameter), SEG_AT(World, integer), SEG_AT(World, exchange),
  SEG_AT(World, storage_size), SEG_AS(World, "storage_of", storage_offset), SEG_AT(World, implementation),
  SEG_AS(World, "dtypes0", dtypes[0]), SEG_AS(World, "dtypes1", dtypes[1]), SEG_AS(World, "dtypes2", dtypes[2]),
  SEG_AS(World, "dtypes3", dtypes[3]), SEG_AS(World, "dtypes4", dtypes[4]), SEG_AS(World, "dtypes5", dtypes[5]),
  SEG_AT(World, data_ptr), SEG_AT(World, is_cpu), SEG_AT(World, is_neg), SEG_AT(World, dtype), SEG_AT(World, shape),
  SEG_AT(World, is_contiguous), SEG_AT(World, contiguous), SEG_AT(World, requires_grad), SEG_AT(World, new_empty),
  SEG_AS(World, "_version", version), SEG_AT(World, needs_input_grad), SEG_AT(World, saved_tensors),
  SEG_AT(World, to_save), SEG_AT(World, rest), SEG_AT(World, untyped_storage), SEG_AT(World, nbytes),
  SEG_AS(World, "storage_offset", offset_of), SEG_AT(World, stride), SEG_AT(World, dtype_only),
  SEG_AS(World, "dispatch_modes", questions[0]), SEG_AS(World, "functorch_active", questions[1]),
  SEG_AS(World, "tracing", questions[2]), SEG_AS(World, "profiling", questions[3]),
  SEG_AT(World, count_function_modes), SEG_AT(World, function_modes), SEG_AT(World, forward_ad),
  SEG_AT(World, current_level), SEG_AT(World, grad_enabled), SEG_AT(World, threads), SEG_AT(World, verdicts),
  SEG_AT(World, setting), SEG_AT(World, look_size), SEG_AT(World, pays_from),
  SEG_SIZE(Array), SEG_AT(Array, lead), SEG_AT(Array, trail), SEG_AT(Array, kind),
  SEG_SIZE(Operation), SEG_AT(Operation, world), SEG_AT(Operation, operands), SEG_AT(Operation, results),
  SEG_AT(Operation, outputs), SEG_AT(Operation, matrices),
  SEG_AT(Operation, differentiable), SEG_AT(Operation, in), SEG_AT(Operation, out), SEG_AT(Operation, function),
  SEG_AT(Operation, refuse),
  SEG_SIZE(Route), SEG_AT(Route, op), SEG_AT(Route, asks), SEG_AT(Route, checks), SEG_AT(Route, general),
  SEG_AT(Route, apply),
  SEG_SIZE(Plan), SEG_AT(Plan, saved), SEG_AT(Plan, save), SEG_AT(Plan, run), SEG_AT(Plan, arguments),
  SEG_AT(Plan, argument), SEG_AT(Plan, gradients), SEG_AT(Plan, gradient), SEG_AT(Plan, last),
  SEG_SIZE(Function), SEG_AT(Function, kernel), SEG_AT(Function, learn), SEG_AT(Function, forward),
  SEG_AT(Function, backward), SEG_AT(Function, plans),
  SEG_END,
};
i64 plain_layout() { return (i64)PLAIN_LAYOUT; }
}}  // namespace seg
