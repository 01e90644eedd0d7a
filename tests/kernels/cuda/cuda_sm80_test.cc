// Compares tensor-core kernels with cuda-reference beyond the conformance cases: every tile size,
// few CTAs over many tiles, rows without an expert, sizes that no tile divides, memory beyond 2^31
// bytes.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "conformance/conformance.h"
#include "kernels/cuda/cuda_test.h"
#include "kernels/cuda/gemm_sm80/mma_choice.h"
#include "kernels/kernel_device.h"
#include "kernels/kernels.h"
#include "quant/activation.h"
#include "support/must.h"

namespace moracle::cuda_sm80_test {
namespace {

constexpr float kUntouched = -12345;

class CudaSm80Test : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    int major = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
    if (major < 8) GTEST_SKIP() << "needs compute capability 8.0 or later";
  }

  struct Problem {
    Scheme scheme;
    MatrixShape shape;
    std::vector<int32_t> offsets;
    int64_t tokens = 0;
  };
  // Row counts per expert from zero to more than one tile; 10 columns more than whole blocks.
  static Problem problem(const Scheme& scheme, int64_t n = 203, int64_t k = 330) {
    return {scheme, {n, k, scheme.weight, false, true}, {0, 0, 1, 151, 151, 160, 190, 479}, 90};
  }
  struct Run {
    Buffer values, scales, row_index, offsets;
    GroupedRows rows;
  };

  KernelWeights weights(const Problem& p, const Layout& layout) {
    std::vector<CanonicalMatrix> experts;
    for (size_t e = 0; e + 1 < p.offsets.size(); ++e)
      experts.push_back(conformance::random_matrix(p.shape, 10 + e));
    return testing::must(
        convert(DescribedMatrix::from(p.scheme, std::move(experts)), layout, *device_));
  }

  // Tokens in the scheme's type, and the token index of each row.
  Run run_of(const Problem& p, int64_t stride) {
    std::mt19937_64 engine(3);
    std::normal_distribution<float> normal;
    std::vector<float> x(p.tokens * stride);
    for (float& v : x) v = normal(engine);
    for (int64_t t = 0; t < p.tokens; ++t) {
      // Padding must be 0.
      for (int64_t c = p.shape.k; c < stride; ++c) x[t * stride + c] = 0;
    }
    Run run;
    run.values = upload(to_bf16(x));
    Matrix all{run.values.data(), DType::kBF16, p.tokens, stride, stride};
    run.rows.x = {all, nullptr, 0};
    if (p.scheme.activation) {
      const QuantKey& key = *p.scheme.activation;
      Buffer floats = std::move(run.values);
      all.cols = p.shape.k;
      run.values = allocate(p.tokens * stride);
      run.rows.x.num_scales = num_groups(key, p.shape.k);
      run.scales = allocate(p.tokens * run.rows.x.num_scales * sizeof(float));
      run.rows.x.scales = run.scales.as<float>();
      run.rows.x.values = {run.values.data(), key.dtype, p.tokens, stride, stride};
      expect_done(kernel_device(*device_).ops().quantize(all, key, run.rows.x, {}));
      expect_done(device_->synchronize());
    }
    std::vector<int32_t> row_index;
    for (int32_t r = 0; r < p.offsets.back(); ++r)
      row_index.push_back(static_cast<int32_t>(engine() % p.tokens));
    run.row_index = upload(row_index);
    run.offsets = upload(p.offsets);
    run.rows.row_index = run.row_index.as<int32_t>();
    run.rows.expert_offsets = run.offsets.as<int32_t>();
    run.rows.num_rows = p.offsets.back() + 100;  // an upper bound
    return run;
  }

  Buffer untouched(const Run& run, int64_t n) {
    return upload(std::vector<float>(run.rows.num_rows * n, kUntouched));
  }

  std::vector<float> reference(const Problem& p, const Run& run) {
    const auto linear = testing::must(kCudaReferenceKernels.make(
        weights(p, kCanonicalLayout), {.kernels = {{NamedKernel{"reference"}}}}, *device_));
    const int64_t n = p.shape.n;
    const Buffer y = untouched(run, n);
    expect_done(linear->run({run.rows, Matrix::f32(y.as<float>(), run.rows.num_rows, n)}, {}));
    return download<float>(y);
  }

  // `stages`: 0 for the most.
  void launch(const cuda::MmaKernel& kernel, cuda::GemmArgs args, int64_t blocks, int stages = 0) {
    if (stages == 0) stages = kernel.most_stages;
    const int bytes = stages * kernel.stage_bytes;
    const auto* const function = reinterpret_cast<const void*>(kernel.kernel);
    ASSERT_EQ(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
              cudaSuccess);
    void* all[] = {&args, &stages};
    const auto grid = static_cast<unsigned>(
        std::min(blocks, cuda::most_tiles(args, kernel.rows, kernel.outputs)));
    ASSERT_EQ(cudaLaunchKernel(function, dim3(grid), dim3(kernel.threads), all, bytes, nullptr),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  std::vector<float> with_tile(const KernelWeights& w, const Run& run,
                               const cuda::MmaKernel& kernel, int64_t blocks,
                               const ActivationSpec* activation = nullptr, int stages = 0) {
    const int64_t columns = activation != nullptr ? w.shape.n / 2 : w.shape.n;
    const Buffer y = untouched(run, columns);
    const Matrix to = Matrix::f32(y.as<float>(), run.rows.num_rows, columns);
    launch(kernel, cuda::gemm_args(w, run.rows, to, activation), blocks, stages);
    return download<float>(y);
  }
};

// Schemes that the backend rejects, and schemes whose rows are quantized per expert.
bool left_out(const Scheme& scheme) {
  const auto& key = scheme.activation;
  const bool unlike = key && key->dtype == DType::kF8E4M3 && scheme.weight.dtype == DType::kI8;
  return scheme.weight.dtype == DType::kF32 || unlike || (key && !key->dynamic);
}
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_F(CudaSm80Test, EveryTileGivesSameBitsNearReference) {
  std::vector<Scheme> schemes = conformance::schemes();
  schemes.push_back({int8_static_group(64), kInt8DynamicTokenSym});
  schemes.push_back({kFp8StaticChannelSym, kFp8Dynamic128Sym});
  schemes.push_back({int4_static_group(96), {}});
  // Groups that end within a k-block of 32 columns.
  schemes.push_back({int4_static_group(48), {}});
  schemes.push_back({int8_static_group(80), kInt8DynamicTokenSym});
  schemes.push_back({fp8_static_block(16, 16), {}});
  schemes.push_back({fp8_static_block(16, 48), fp8_dynamic_group(64)});
  for (const char* name : {"int8-w8a16-g16-asym", "int8-w8a8-g16-asym", "int8-w8a8-g16-min",
                           "int4-w4afp8-g16-asym", "int4-w4afp8-g16-min", "int4-w4afp8-g32-min"})
    schemes.push_back(*parse_scheme(name));
  for (const Scheme& scheme : schemes) {
    if (left_out(scheme)) continue;
    SCOPED_TRACE(describe(scheme));
    const Problem p = problem(scheme);
    const KernelWeights w = weights(p, kMma16Layout);
    const Run run = run_of(p, kMma16Layout.read_cols(p.shape));
    const std::vector<float> want = reference(p, run);
    float largest = 0;
    for (int64_t i = 0; i < p.offsets.back() * p.shape.n; ++i)
      largest = std::max(largest, std::fabs(want[i]));
    std::vector<float> first;
    for (const cuda::MmaKernel& kernel : cuda::mma_kernels_for(p.shape, scheme)) {
      SCOPED_TRACE(kernel.rows);
      const std::pair<int64_t, int> launches[] = {{1, 0}, {5, 0}, {100000, 0}, {5, 2}, {5, 3}};
      for (const auto& [blocks, stages] : launches) {
        const std::vector<float> got =
            with_tile(w, run, kernel, blocks, nullptr, std::min(stages, kernel.most_stages));
        if (first.empty()) {
          first = got;
          for (size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(got[i], want[i], 3e-5f * largest) << i;
        }
        ASSERT_TRUE(same(got, first)) << blocks << " blocks, " << stages << " stages";
      }
    }
  }
}

TEST_F(CudaSm80Test, FusedActivationMatchesStoredOutputForEveryTile) {
  const ActivationSpec specs[] = {
      {.function = Activation::kSilu},
      {.function = Activation::kSilu, .limit = 0.7f},
      {.function = Activation::kSwigluOai, .alpha = 1.3f, .beta = 0.5f, .limit = 0.9f}};
  for (const char* name : {"bf16", "int4-w4a16-g32", "int4-w4a16-g16", "int8-w8a8", "int8-w8a8-g16",
                           "fp8-w8a8-block128x128", "int4-w4afp8-g128", "nvfp4-w4afp8"}) {
    SCOPED_TRACE(name);
    // Seven gate panels: no tile divides them.
    const Problem p = problem(*parse_scheme(name), 224);
    const KernelWeights w = weights(p, kMma16Layout);
    const Run run = run_of(p, kMma16Layout.read_cols(p.shape));
    const cuda::MmaKernels kernels = cuda::mma_kernels_for(p.shape, p.scheme);
    const std::vector<float> plain = with_tile(w, run, kernels[0], 64);
    for (const ActivationSpec& spec : specs) {
      ASSERT_TRUE(cuda::mma_activates(p.shape, spec));
      const bool oai = spec.function == Activation::kSwigluOai;
      for (const cuda::MmaKernel& kernel : kernels) {
        SCOPED_TRACE(kernel.rows);
        const std::vector<float> got = with_tile(w, run, kernel, 9, &spec);
        for (size_t i = 0; i < got.size(); ++i) {
          const size_t r = i / 112, c = i % 112;
          double g = plain[r * 224 + c], u = plain[r * 224 + 112 + c];
          if (spec.limit > 0) g = std::min<double>(g, spec.limit);
          if (spec.limit > 0) u = std::clamp<double>(u, -spec.limit, spec.limit);
          const double want =
              g / (1 + std::exp(-(oai ? spec.alpha : 1) * g)) * (u + (oai ? spec.beta : 0));
          if (r < static_cast<size_t>(p.offsets.back()))
            ASSERT_NEAR(got[i], want, 1e-6 + 1e-5 * std::fabs(want)) << r << " " << c;
          else
            ASSERT_EQ(got[i], kUntouched);
        }
      }
    }
  }
}

TEST_F(CudaSm80Test, RowOffsetDoesNotChangeBits) {
  for (const char* name : {"bf16", "int4-w4a16-g32", "int4-w4a16-g16", "int8-w8a8", "int8-w8a8-g16",
                           "fp8-w8a8-block128x128", "int4-w4afp8-g128", "nvfp4-w4afp8"}) {
    SCOPED_TRACE(name);
    const Problem p = problem(*parse_scheme(name));
    const KernelWeights w = weights(p, kMma16Layout);
    const int64_t cols = kMma16Layout.read_cols(p.shape);
    const cuda::MmaKernels kernels = cuda::mma_kernels_for(p.shape, p.scheme);
    Run run = run_of(p, cols);
    const std::vector<float> want = with_tile(w, run, kernels[1], 64);
    // The same values with a row stride one element larger.
    const int64_t size = p.scheme.activation ? 1 : 2;
    const std::vector<uint8_t> bytes = download<uint8_t>(run.values);
    std::vector<uint8_t> shifted((p.tokens * (cols + 1) + 1) * size, 0x5a);
    for (int64_t t = 0; t < p.tokens; ++t)
      std::memcpy(shifted.data() + (t * (cols + 1) + 1) * size, bytes.data() + t * cols * size,
                  cols * size);
    const Buffer moved = upload(shifted);
    run.rows.x.values.data = moved.as<uint8_t>() + size;
    run.rows.x.values.stride = cols + 1;
    EXPECT_TRUE(same(with_tile(w, run, kernels[1], 64), want));
  }
}

TEST_F(CudaSm80Test, Bf16StoreRoundsCorrectlyForAnyRowOffset) {
  Problem p = problem(*parse_scheme("int4-w4a16-g32"));
  const KernelWeights w = weights(p, kMma16Layout);
  const Run run = run_of(p, kMma16Layout.read_cols(p.shape));
  const cuda::MmaKernel& kernel = cuda::mma_kernels_for(p.shape, p.scheme)[2];
  const std::vector<float> want = with_tile(w, run, kernel, 64);
  const int64_t n = p.shape.n, rows = run.rows.num_rows;
  for (int64_t stride : {n, n + 1}) {
    const Buffer y = upload(std::vector<uint16_t>(rows * stride, 0x1234));
    launch(kernel, cuda::gemm_args(w, run.rows, {y.data(), DType::kBF16, rows, n, stride}), 64);
    const std::vector<uint16_t> got = download<uint16_t>(y);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < stride; ++c) {
        const bool there = r < p.offsets.back() && c < n;
        ASSERT_EQ(got[r * stride + c], there ? float_to_bf16(want[r * n + c]) : 0x1234)
            << r << " " << c;
      }
    }
  }
}

TEST_F(CudaSm80Test, MultipliesWeightsBeyondTwoGigabytes) {
  Problem p = problem(*parse_scheme("int8-w8a16-channel"), 64, 64);
  p.offsets = {0, 7, 11, 20};
  p.tokens = 20;
  KernelWeights w = weights(p, kMma16Layout);
  Run run = run_of(p, 64);
  const cuda::MmaKernels kernels = cuda::mma_kernels_for(p.shape, p.scheme);
  const std::vector<float> want = with_tile(w, run, kernels[0], 64);
  // Larger strides between experts, rows of x and rows of y.
  constexpr int64_t kApart = int64_t{1} << 30, kStride = int64_t{1} << 26;
  const auto bytes = static_cast<int64_t>(w.sections.bytes);
  Result<Buffer> far = device_->allocate(3 * kApart);
  Result<Buffer> x = device_->allocate(p.tokens * kStride * 2);
  Result<Buffer> y = device_->allocate(p.tokens * kStride * 4);
  if (!far || !x || !y) GTEST_SKIP() << "needs 10 GB of the GPU's memory";
  for (int64_t e = 0; e < 3; ++e) {
    expect_done(device_->copy(far->as<std::byte>() + e * kApart,
                              w.buffer.as<std::byte>() + e * bytes, bytes));
  }
  for (int64_t t = 0; t < p.tokens; ++t) {
    expect_done(device_->copy(x->as<std::byte>() + t * kStride * 2,
                              run.values.as<std::byte>() + t * 128, 128));
  }
  expect_done(device_->synchronize());
  w.buffer = *std::move(far);
  w.sections.bytes = kApart;
  run.rows.x.values = {x->data(), DType::kBF16, p.tokens, 64, kStride};
  run.rows.num_rows = p.tokens;
  for (const cuda::MmaKernel& kernel : kernels) {
    const Matrix to{y->data(), DType::kF32, p.tokens, 64, kStride};
    launch(kernel, cuda::gemm_args(w, run.rows, to), 64);
    for (int64_t r = 0; r < p.tokens; ++r) {
      std::vector<float> row(64);
      expect_done(device_->download(row.data(), y->as<float>() + r * kStride, 256));
      expect_done(device_->synchronize());
      ASSERT_EQ(std::memcmp(row.data(), want.data() + r * 64, 256), 0) << kernel.rows << " " << r;
    }
  }
}

TEST_F(CudaSm80Test, ZeroRowsDoNothing) {
  Problem p = problem(*parse_scheme("bf16"), 64, 64);
  p.offsets.assign(8, 0);
  const KernelWeights w = weights(p, kMma16Layout);
  Run run = run_of(p, 64);
  for (const cuda::MmaKernel& kernel : cuda::mma_kernels_for(p.shape, p.scheme)) {
    for (float y : with_tile(w, run, kernel, 64)) ASSERT_EQ(y, kUntouched);
  }
}

}  // namespace
}  // namespace moracle::cuda_sm80_test
