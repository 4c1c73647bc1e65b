"""Names of the elementwise ops with an in-place form, whose declarations and kernels are made from the functional ones."""

#: Names of ops; the in-place op is called the same with an underscore, writes its first operand and returns it.
OVERWRITING: tuple[str, ...] = tuple((
    "add sub mul div abs neg sign floor ceil round trunc frac reciprocal square sqrt rsqrt exp exp2 expm1 log log1p log2 log10 "
    "sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh erf erfc sinc sigmoid relu nan_to_num "
    "lgamma digamma polygamma erfinv pow floor_divide remainder fmod arctan2 hypot clamp lerp addcmul addcdiv "
    "eq ne lt le gt ge "
    "logical_not logical_and logical_or logical_xor bitwise_not bitwise_and bitwise_or bitwise_xor "
    "bitwise_left_shift bitwise_right_shift").split())
