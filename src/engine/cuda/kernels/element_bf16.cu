/* Elements of the files that follow: bf16. Arithmetic stays in f32. */
#undef T
#undef LOAD
#undef STORE
#undef NAME
#define T bf16
#define LOAD(p, i) load_bf16((p)[i])
#define STORE(p, i, value) ((p)[i] = store_bf16(value))
#define NAME(x) x##_bf16
