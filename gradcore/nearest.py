"""The nearest equivalents of PyTorch names that gradcore lacks, where no equal or similar name exists elsewhere in it.

Each entry is what to use, and the names that it stands for, with their module where the name alone would say too little;
``module.*`` stands for what else the module has. ``x`` and ``y`` are the arguments in order.
"""

from __future__ import annotations

_DECOMPOSED = ("gradcore.linalg.solve, qr, svd, eigh and cholesky; for other decompositions numpy.linalg on "
               "x.detach().numpy(), without a gradient")
_COMPLEX = "real and imaginary parts as two tensors: all tensors of gradcore are real"
_SCIPY = "scipy.special on x.detach().numpy(), which shares its memory, without a gradient"

NEAREST: dict[str, str] = {
    "gradcore.linalg.matrix_norm(x, 'nuc')": "nuclear_norm",
    _DECOMPOSED: """eig lu lu_factor lu_factor_ex lu_solve lu_unpack geqrf orgqr ormqr lobpcg eigvals
        householder_product ldl_factor ldl_factor_ex ldl_solve""",
    "gradcore.linalg.eigh": "symeig",
    "gradcore.linalg.svd": "svd_lowrank pca_lowrank",
    "gradcore.linalg.lstsq": "Tensor.lstsq",
    "gradcore.linalg.solve": "solve",
    "gradcore.linalg.solve_triangular": "triangular_solve",
    "gradcore.linalg.norm": "frobenius_norm",
    _COMPLEX: """complex complex32 complex64 complex128 cfloat cdouble chalf real imag angle conj conj_physical conj_physical_
        polar resolve_conj resolve_neg is_conj is_neg isreal view_as_complex view_as_real""",
    _SCIPY: """i0 i0_ airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 i0e
        i1 i1e modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0
        scaled_modified_bessel_k1 spherical_bessel_j0 zeta""",
    "numpy.polynomial on x.detach().numpy(), without a gradient": """chebyshev_polynomial_t chebyshev_polynomial_u
        chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
        legendre_polynomial_p shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
        shifted_chebyshev_polynomial_w""",
    "gradcore.special.multigammaln": "mvlgamma mvlgamma_",
    "numpy.fft on x.detach().numpy(), without a gradient": "fft stft istft",
    "gradcore.hann_window and the like": "signal",
    "the package tensorboardX, whose SummaryWriter takes numbers and arrays": "tensorboard",
    "timeit, with gradcore.cuda.synchronize before the clock is read": "benchmark ThroughputBenchmark",
    "numpy.histogramdd on x.detach().numpy()": "histogramdd",
    "gradcore.scatter_reduce, with the index expanded to the shape of the source": "segment_reduce",
    "gradcore.index_put, or a write such as x[index] = y": """as_strided_scatter
        set_ apply_ map_ map2_""",
    "gradcore.renorm": "embedding_renorm_",
    "gradcore.remainder, for integers": "gcd gcd_ lcm lcm_",
    "gradcore.igamma and igammac": "igamma_ igammac_",
    "gradcore.distributions.Normal": "VonMises",
    "gradcore.distributions.MultivariateNormal": "LowRankMultivariateNormal",
    "gradcore.distributions.Pareto": "GeneralizedPareto",
    "gradcore.distributions.Transform, whose subclasses define _call, _inverse and log_abs_det_jacobian":
        "CumulativeDistributionTransform",
    "gradcore.distributions.Gamma": "Wishart ExponentialFamily exp_family",
    "gradcore.distributions.Beta": "Kumaraswamy LKJCholesky",
    "gradcore.distributions.RelaxedBernoulli": "ContinuousBernoulli",
    "gradcore.distributions.Distribution.sample": "sample_n",
    "gradcore.tensor": "from_file as_subclass",
    "gradcore.empty": "new_empty_strided empty_strided empty_permuted",
    "gradcore.uint8": "uint1 uint2 uint3 uint4 uint5 uint6 uint7 bit",
    "gradcore.int8": "int1 int2 int3 int4 int5 int6 int7 qint8 qint32 quint8",
    "gradcore.float16": "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    "gradcore.Tensor.device, which has a device's type and index": """is_mtia is_xla is_ipu is_maia
        is_vulkan xpu mtia ipu mps""",
    "dense tensors: gradcore.zeros, and gradcore.Tensor.index_add": """sparse sparse_coo sparse_csr sparse_csc sparse_bsr
        sparse_bsc sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor
        sparse_compressed_tensor to_sparse to_sparse_coo to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc to_dense
        is_sparse_csr coalesce is_coalesced sparse_mask sparse_dim dense_dim SparseAdam hspmm hsmm dsmm smm spmm
        saddmm sspaddmm nested jagged""",
    "gradcore.autograd.Function, whose backward returns the gradient that it is given": """fake_quantize_per_channel_affine
        fake_quantize_per_tensor_affine""",
    "gradcore.autograd.Function": "library",
    "gradcore.autocast and gradcore.GradScaler": """quantization ao quantize_per_tensor quantize_per_channel
        quantize_per_tensor_dynamic dequantize qat quantized quantizable intrinsic""",
    "gradcore.manual_seed and gradcore.Generator": "seed_all quasirandom",
    "the argument device= of creation functions, and gradcore.Tensor.to": "device_of",
    "the environment variable OMP_NUM_THREADS": "set_num_interop_threads get_num_interop_threads",
    "gradcore.nn.Module.register_full_backward_hook": "register_backward_hook",
    "gradcore.optim.Optimizer.register_step_pre_hook": "profile_hook_step",
    "gradcore.nn.Module.to": "nn.Module.xpu nn.Module.ipu nn.Module.mtia",
    "gradcore.Tensor.data_ptr, nbytes and numel": "untyped_storage",
    "gradcore.compile": """fx jit.* fork wait cuda.graph CUDAGraph graphs make_graphed_callables cond while_loop
        compiler.*""",
    "gradcore.onnx.export": "export",
    "gradcore.func.jvp": "forward_ad",
    "gradcore.autograd.grad, with create_graph=True for higher derivatives": "functionalize",
    "gradcore.func.functional_call": "stateless",
    "gradcore.autograd.set_detect_anomaly": "anomaly_mode set_anomaly_enabled",
    "gradcore.step, whose report names the owner of every byte": """profiler autograd.profiler.* memory_snapshot
        memory_stats_as_nested_dict host_memory_stats memory_usage list_gpu_processes""",
    "gradcore.step, whose recording.export(path, 'snapshot') writes what pytorch.org/memory_viz opens": """
        _record_memory_history _snapshot _dump_snapshot""",
    "gradcore.set_memory_limit": "get_per_process_memory_fraction",
    "gradcore.cuda": "accelerator.*",
    "one process on one device": "distributed.* is_distributed",
    "threads, which share tensors as they are: memory is not shared between processes": "share_memory share_memory_ is_shared",
    "gradcore.save and gradcore.load": "serialization hub.*",
    "gradcore.data.load": "datapipes",
    "gradcore.nn.functional.interpolate": """grid_sampler grid_sampler_2d grid_sampler_3d
        affine_grid_generator""",
    "gradcore.nn.Dropout2d": "feature_dropout",
    "gradcore.nn.Module.register_buffer": "UninitializedBuffer",
    "gradcore.nn.Sequential": "Container",
    "gradcore.nn.RNN, gradcore.nn.LSTM and gradcore.nn.GRU": "lstm gru rnn_tanh rnn_relu",
    "gradcore.nn.LSTMCell, gradcore.nn.GRUCell and gradcore.nn.RNNCell": "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    "gradcore.Tensor.to": "to_mkldnn",
    "gradcore.autocast": """clear_autocast_cache is_autocast_cache_enabled set_autocast_cache_enabled set_autocast_dtype
        set_autocast_enabled""",
    "gradcore.manual_seed: kernels add in the same order in every run": """deterministic
        set_deterministic_debug_mode get_deterministic_debug_mode""",
    "gradcore.Tensor.contiguous": "memory_format layout dim_order",
    "gradcore.reshape": "resize resize_as resize_as_sparse_",
    "gradcore.nn.functional.conv1d": "conv_tbc",
    "gradcore.nn.functional.conv2d": "convolution",
    "gradcore.nn.functional.pad": "constant_pad_nd",
    "gradcore.bmm": "grouped_mm scaled_mm scaled_grouped_mm",
    "numpy.from_dlpack(x), or gradcore.Tensor.__dlpack__": "to_dlpack dlpack",
    "gradcore.cuda.get_device_name": "get_arch_list",
    "gradcore.cuda.memory_reserved": "memory_cached",
    "gradcore.cuda.max_memory_reserved": "max_memory_cached",
    "gradcore.cuda.reset_peak_memory_stats": """reset_max_memory_allocated reset_max_memory_cached
        reset_accumulated_memory_stats""",
    "gradcore.cuda.stream": "StreamContext ExternalStream"}
