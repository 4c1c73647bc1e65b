// digamma and its derivatives, and the incomplete gamma functions, computed in double precision and rounded once: asymptotic
// series after the recurrence has moved x far enough, and reflection for negative x. gradcore/devices/host/kernels/gamma.py says where
// the coefficients are from, and incomplete.py beside it what is done for the incomplete functions.

__device__ __forceinline__ double series_of(double x, const double* c, int n) {
    double total = c[n - 1], y = 1 / (x * x);
    for (int k = n - 2; k >= 0; k--) total = total * y + c[k];
    return total;
}
// pi (x - the nearest integer), whose tangent is that of pi x.
__device__ __forceinline__ double from_whole(double x) { return 3.141592653589793 * (x - rint(x)); }

__device__ double digamma_of(double x) {
    const double slope[9] = {1. / 12, -1. / 120, 1. / 252, -1. / 240, 1. / 132, -691. / 32760, 1. / 12, -3617. / 8160, 43867. / 14364};
    const double near[24] = {
        0.95105587603183288, -0.21181371064073025, 0.06013562106019684, -0.018550615381739702, 0.0059367952783018757,
        -0.0019350666647392833, 0.00063688803038479007, -0.00021074841284590126, 6.9950188265504409e-5, -2.3258232758953131e-5,
        7.7412344413683949e-6, -2.5781337016107129e-6, 8.589062683365892e-7, -2.8621216825577647e-7, 9.5432615707604287e-8,
        -3.1807298477301726e-8, 1.0528133851878113e-8, -3.5092354924107181e-9, 1.246669023186403e-9, -4.1555064115551964e-10,
        8.7484200374362866e-11, -2.9161179626023812e-11, 2.9160936010853641e-11, -9.7203004042022443e-12};
    if (x == 0) return copysign(infinity<double>(), -x);
    if (x < 0 && x == rint(x)) return infinity<double>() - infinity<double>();
    double a = x < 0 ? 1 - x : x, found = 0;
    if (a < 2) {
        double away = (a < 1 ? a - (1.4616321449683622 - 1) : a - 1.4616321449683622) - 9.549995429965697e-17;
        double y = ((a < 1 ? a + 1 : a) - 1.5) / 0.5, total = near[23];
        for (int k = 22; k >= 0; k--) total = total * y + near[k];
        found = away * total - (a < 1 ? 1 / a : 0);
    } else {
        if (a < 10) {
            for (int k = 0; k < 8; k++) found -= 1 / (a + k);
            a += 8;
        }
        found += log(a) - 0.5 / a - series_of(a, slope, 9) / (a * a);
    }
    return x < 0 ? found - 3.141592653589793 / tan(from_whole(x)) : found;
}

// (-1)^(n+1) n! times the sum of (x + k)^-(n+1). Left of 0 the terms are those that begin at the distance to the integer below,
// and, with the sign of an odd power, those from the distance to the integer above on, less those from 0 on.
__device__ double polygamma_of(double x, int n) {
    const double zeta[11] = {1. / 12, -1. / 720, 1. / 30240, -1. / 1209600, 2.0876756987868099e-8, -5.2841901386874932e-10,
                             1.3382536530684679e-11, -3.3896802963225829e-13, 8.5860620562778446e-15, -2.1748686985580619e-16,
                             5.5090028283602295e-18};
    double low = floor(x), above = ceil(x) - x, total = 0, factorial = 1;
    int sign = n % 2 ? 1 : -1, parts = x > 0 || x == low ? 1 : 3;
    for (int part = 0; part < parts; part++) {
        double a = part ? (part == 1 ? above : above - low) : x > 0 ? x : x - low, found = 0;
        for (int k = 0; k < 10; k++) found += pow(a + k, -(n + 1.0));
        double s = a + 10, power = pow(s, -(double)n), term = power * (n + 1) / (s * s);
        found += power / n + power / s / 2;
        for (int k = 0; k < 11; k++) {
            found += zeta[k] * term;
            term *= (n + 2. * k + 2) * (n + 2. * k + 3) / (s * s);
        }
        total += part == 0 ? found : part == 1 ? sign * found : -sign * found;
    }
    for (int k = 2; k <= n; k++) factorial *= k;
    return sign * factorial * total;
}

// S of gammainc(a, x) = x^a e^-x / Gamma(a + 1) S, and minus its derivative by a.
__device__ __forceinline__ double incomplete_series(double a, double x, double& slope) {
    double term = 1, total = 1, sums = 0;
    slope = 0;
    for (int n = 1; n < 20000; n++) {
        double below = 1 / (a + n);
        term *= x * below;
        sums += below;
        total += term;
        slope += term * sums;
        if (!(term * (1 + sums) > 1e-17 * total)) break;
    }
    return total;
}

// C of gammaincc(a, x) = x^a e^-x / Gamma(a) C.
__device__ double incomplete_fraction(double a, double x) {
    double b = x + 1 - a, c = 1e300, d = 1 / b, total = d;
    for (int n = 1; n < 20000; n++) {
        double step = n * (a - n);
        b += 2;
        d = step * d + b;
        d = 1 / (fabs(d) < 1e-300 ? 1e-300 : d);
        c = step / c + b;
        c = fabs(c) < 1e-300 ? 1e-300 : c;
        total *= c * d;
        if (!(fabs(c * d - 1) > 1e-15)) break;
    }
    return total;
}

// For a large a: Temme's expansion. Far from a it is 0 or 1.
__device__ double incomplete_expansion(double a, double x, bool upper) {
    const double powers[3][15] = {
        {-1. / 3, 1. / 12, -2. / 135, 1. / 864, 1. / 2835, -1.7875514403292181e-4, 3.9192631785224378e-5, -2.1854485106799922e-6,
         -1.85406221071516e-6, 8.296711340953086e-7, -1.7665952736826079e-7, 6.7078535434014986e-9, 1.0261809784240308e-8,
         -4.3820360184533532e-9, 9.1476995822367902e-10},
        {-1. / 540, -1. / 288, 2.6455026455026455e-3, -9.9022633744855967e-4, 2.0576131687242798e-4, -4.0187757201646091e-7,
         -1.8098550334489978e-5, 7.6491609160811101e-6, -1.6120900894563446e-6, 4.6471278028074343e-9},
        {4.1335978835978836e-3, -2.6813271604938272e-3, 7.7160493827160494e-4, 2.0093878600823045e-6, -1.0736653226365161e-4,
         5.2923448829120125e-5}};
    double mu = (x - a) / a, log_series = 0, rest = 0;
    mu = mu < -0.3 ? -0.3 : mu > 0.3 ? 0.3 : mu;
    double t = mu / (2 + mu);
    for (int n = 23; n >= 3; n -= 2) log_series = log_series * t * t + 1. / n;
    // mu - log(1 + mu), without cancellation
    double half = mu * t - 2 * t * t * t * log_series, eta = copysign(sqrt(2 * half), mu), tail = eta * sqrt(a / 2);
    for (int k = 2; k >= 0; k--) {
        double part = 0;
        for (int n = 14; n >= 0; n--) part = part * eta + powers[k][n];
        rest = rest / a + part;
    }
    rest *= exp(-a * half) / sqrt(6.283185307179586 * a);
    return upper ? 0.5 * erfc(tail) + rest : 0.5 * erfc(-tail) - rest;
}

// gammaincc for small a and x, where 1 - gammainc would cancel.
__device__ double incomplete_small(double a, double x) {
    double term = 1, total = 0;
    for (int n = 1; n < 30; n++) {
        term *= -x / n;
        total += term / (a + n);
    }
    // log Gamma(1 + a), of which 1 + a has too few digits
    double log_next = a < 1e-4 ? a * (-0.5772156649015329 + a * (0.8224670334241132 - a * 0.40068563438653143)) : lgamma(1 + a);
    double power = a * log(x) - log_next;
    return -expm1(power) - a * exp(power) * total;
}

__device__ double incomplete_of(double a, double x, bool upper) {
    const double most = infinity<double>();
    if (!(a >= 0 && x >= 0) || (a == x && (a == 0 || a == most))) return not_a_number<double>();
    if (x == most || a == 0) return upper ? 0 : 1;
    if (a == most || x == 0) return upper ? 1 : 0;
    if (a > 1e4 && (fabs(x - a) < 0.3 * a || a > 1e6)) return incomplete_expansion(a, x, upper);
    if (upper && x < 1.1 && (x < 0.5 ? -0.4 / log(x) : 1.1 * x) >= a) return incomplete_small(a, x);
    double slope, scale = exp(a * log(x) - x - lgamma(a));
    bool low = x < a + 1;
    double part = low ? scale / a * incomplete_series(a, x, slope) : scale * incomplete_fraction(a, x);
    return low != upper ? part : 1 - part;
}
