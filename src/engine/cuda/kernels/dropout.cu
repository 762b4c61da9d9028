/* The factors of dropout: words of the program's own streams, as `config::seed` makes them. */
HELPER word mix64(word z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* to[i] = 0 where word i of the stream is below the limit, else kept; the key is read on the device:
 * it came with the pictures. */
KERNEL dropout_mask(float *to, const word *keys, int at, word limit, float kept, int count)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < count) {
            word drawn = mix64(keys[at] + ((word)i + 1) * 0x9E3779B97F4A7C15ull);
            to[i] = (drawn >> 11) < limit ? 0.0f : kept;
        }
    }
}
