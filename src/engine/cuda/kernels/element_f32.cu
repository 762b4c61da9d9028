/* Elements of the files that follow: f32. */
#define T float
#define LOAD(p, i) ((p)[i])
#define STORE(p, i, value) ((p)[i] = (value))
#define NAME(x) x##_f32
