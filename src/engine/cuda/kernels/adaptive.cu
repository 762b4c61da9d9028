/* Means over windows that cover a plane of any size and give a plane of a wanted one: row i of oh
 * covers the rows from i*h/oh, rounded down, to (i+1)*h/oh, rounded up. Sums in the order of
 * `engine::plan::adaptive`, for the same bits. A side times its windows is far below 2^31. */
HELPER int window_start(int length, int windows, int at)
{
    return at * length / windows;
}
HELPER int window_end(int length, int windows, int at)
{
    return up((at + 1) * length, windows);
}
/* The first and the last window that contain an element. */
HELPER int first_window(int length, int windows, int element)
{
    return element * windows / length;
}
HELPER int last_window(int length, int windows, int element)
{
    return ((element + 1) * windows - 1) / length;
}

/* One thread per mean. */
KERNEL adaptive_forward(const float *from, float *to, int planes, int h, int w, int oh, int ow)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < planes * oh * ow) {
            int column = i % ow, row = i / ow % oh;
            const float *plane = from + (long long)(i / ow / oh) * h * w;
            int top = window_start(h, oh, row), bottom = window_end(h, oh, row);
            int left = window_start(w, ow, column), right = window_end(w, ow, column);
            float sum = 0.0f;
            for (int y = top; y < bottom; y++)
                for (int x = left; x < right; x++) sum = sum + plane[(long long)y * w + x];
            to[i] = sum / (float)((bottom - top) * (right - left));
        }
    }
}

/* One thread per element, which gathers the shares of all windows that contain it. */
KERNEL adaptive_backward(const float *means, float *to, int planes, int h, int w, int oh, int ow)
{
    EACH_THREAD(t, THREADS) {
        int i = BLOCK * THREADS + t;
        if (i < planes * h * w) {
            int x = i % w, y = i / w % h;
            const float *plane = means + (long long)(i / w / h) * oh * ow;
            int row_end = last_window(h, oh, y) + 1, column_end = last_window(w, ow, x) + 1;
            float sum = 0.0f;
            for (int row = first_window(h, oh, y); row < row_end; row++) {
                int rows = window_end(h, oh, row) - window_start(h, oh, row);
                for (int column = first_window(w, ow, x); column < column_end; column++) {
                    int columns = window_end(w, ow, column) - window_start(w, ow, column);
                    sum = sum + plane[(long long)row * ow + column] / (float)(rows * columns);
                }
            }
            to[i] = sum;
        }
    }
}
