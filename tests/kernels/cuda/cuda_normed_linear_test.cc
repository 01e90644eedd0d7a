// Compares linear layers with a fused norm of their input with the norm and the layer run
// separately: the same bits, also in graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "conformance/conformance.h"
#include "kernels/cuda/cuda_test.h"
#include "kernels/kernel_device.h"
#include "kernels/linear_call.h"
#include "moracle/moe.h"
#include "support/floats.h"
#include "support/must.h"

namespace moracle::cuda_normed_linear_test {
namespace {

using testing::must;

constexpr int64_t kMostTokens = 16;

class CudaNormedLinearTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    const Selection selection = select_layer(64, 512, false, "int4-w4a16-g128");
    if (!selection.plan) GTEST_SKIP() << selection.chosen().error().to_string();
  }

  static DescribedMatrix described(int64_t outputs, int64_t hidden, bool bias,
                                   const char* scheme_name) {
    const Scheme scheme = *parse_scheme(scheme_name);
    const MatrixShape shape{.n = outputs, .k = hidden, .key = scheme.weight, .bias = bias};
    std::vector<CanonicalMatrix> one;
    one.push_back(conformance::random_matrix(shape, 3));
    return DescribedMatrix::from(scheme, std::move(one));
  }
  static Selection select_layer(int64_t outputs, int64_t hidden, bool bias, const char* scheme) {
    return select({.layer = linear_spec("qkv", described(outputs, hidden, bias, scheme)),
                   .max_num_tokens = kMostTokens,
                   .backend = "cuda-sm90",
                   .platform = Platform::kCuda},
                  Machine::here());
  }
  Linear make(int64_t outputs, int64_t hidden, bool bias, const char* scheme) {
    outputs_ = outputs, hidden_ = hidden;
    weight_ = upload(normal(hidden));
    residual_ = to_bf16(normal(kMostTokens * hidden));
    x_ = upload(residual_);
    y_ = upload(to_bf16(normal(kMostTokens * hidden)));
    sum_ = upload(residual_);
    normed_ = upload(residual_);
    out_ = upload(std::vector<uint16_t>(kMostTokens * outputs, 0x7fc0));
    return must(Linear::make(described(outputs, hidden, bias, scheme),
                             select_layer(outputs, hidden, bias, scheme),
                             std::make_shared<Workspace>(device_)));
  }
  std::vector<float> normal(int64_t count) { return testing::normal_floats(random_, count); }

  NormedInput input(int64_t tokens) const {
    return {{bf16_matrix(x_, tokens, hidden_), bf16_matrix(y_, tokens, hidden_),
             weight_.as<float>(), 1e-6f, bf16_matrix(normed_, tokens, hidden_)},
            bf16_matrix(sum_, tokens, hidden_)};
  }
  Matrix out(int64_t tokens) const { return bf16_matrix(out_, tokens, outputs_); }
  void reset() {
    must(device_->upload(x_.data(), residual_.data(), x_.bytes(), {}));
    must(device_->upload(sum_.data(), residual_.data(), sum_.bytes(), {}));
    const std::vector<uint16_t> nan(out_.bytes() / 2, 0x7fc0);
    must(device_->upload(out_.data(), nan.data(), out_.bytes(), {}));
  }
  void expect_same_bits_beside_rows(const char* scheme, int64_t outputs, int64_t hidden) {
    Linear linear = make(outputs, hidden, outputs == 200, scheme);
    const auto apply = [&](int64_t tokens) {
      reset();
      must(linear.apply(bf16_matrix(y_, tokens, hidden), out(tokens)));
      return download<uint16_t>(out_);
    };
    const std::vector<uint16_t> want = apply(8);
    for (const int64_t tokens : {1, 3, 4}) {
      SCOPED_TRACE(str(scheme, ", ", outputs, " x ", hidden, ", ", tokens, " tokens"));
      const std::vector<uint16_t> got = apply(tokens);
      ASSERT_TRUE(std::equal(got.begin(), got.begin() + tokens * outputs, want.begin()));
    }
  }

  struct Results {
    std::vector<uint16_t> sum, out;
    bool operator==(const Results&) const = default;
  };
  Results composed(Linear& linear, int64_t tokens) {
    reset();
    const AddRmsNorm n = input(tokens).norm;
    must(kernel_device(*device_).ops().add_rms_norm(n.x, n.y, n.weight, n.epsilon, n.out, {}));
    must(linear.apply(n.out, out(tokens)));
    return {download<uint16_t>(x_), download<uint16_t>(out_)};
  }
  Results fused(Linear& linear, int64_t tokens) {
    reset();
    must(linear.apply({input(tokens), out(tokens)}, {}));
    EXPECT_EQ(download<uint16_t>(x_), residual_);
    return {download<uint16_t>(sum_), download<uint16_t>(out_)};
  }

  std::mt19937 random_{12};
  int64_t outputs_ = 0, hidden_ = 0;
  Buffer weight_, x_, y_, sum_, normed_, out_;
  std::vector<uint16_t> residual_;
};

struct Size {
  int64_t outputs, hidden;
};
constexpr Size kSizes[] = {{16, 1024}, {200, 2880}, {200, 4096}, {4400, 2048}};

// One panel, fewer panels than CTAs, and more panels than CTAs; whole and partial stages.
TEST_F(CudaNormedLinearTest, OneKernelGivesBitsOfTwo) {
  for (const char* const scheme :
       {"int4-w4a16-g128", "int4-w4a16-g32", "int8-w8a16-channel", "int8-w8a16-g16-s8-6bit",
        "mxfp4-w4a16", "bf16", "int8-w8a8", "fp8-w8a8-channel", "fp8-w8a8-block128x128"}) {
    for (const auto& [outputs, hidden] : kSizes) {
      const bool bias = outputs == 200;
      if (!select_layer(outputs, hidden, bias, scheme).plan) continue;
      const bool quantizes = parse_scheme(scheme)->activation.has_value();
      if (quantizes && hidden % 128 != 0) continue;
      Linear linear = make(outputs, hidden, bias, scheme);
      for (const int64_t tokens : {1, 2, 3, 4}) {
        SCOPED_TRACE(str(scheme, ", ", outputs, " x ", hidden, ", ", tokens, " tokens"));
        EXPECT_TRUE(tokens > 1 || linear.serves({input(tokens)}));
        if (!linear.serves({input(tokens)})) continue;
        const Results want = composed(linear, tokens);
        ASSERT_TRUE(fused(linear, tokens) == want);
      }
    }
  }
}

TEST_F(CudaNormedLinearTest, OtherInputsRunOneAfterAnother) {
  Linear linear = make(64, 2048, false, "int4-w4a16-g128");
  EXPECT_TRUE(linear.serves({input(4)}));
  EXPECT_FALSE(linear.serves({input(5)}));
  Linear wide = make(64, 7168, false, "int4-w4a16-g128");
  EXPECT_FALSE(wide.serves({input(1)}));
  Linear mx = make(64, 2048, false, "mxfp8-w8a8");
  EXPECT_FALSE(mx.serves({input(1)}));
  Linear quantized = make(64, 2048, false, "int8-w8a8");
  EXPECT_TRUE(quantized.serves({input(4)}));
  EXPECT_FALSE(quantized.serves({input(5)}));
}

TEST_F(CudaNormedLinearTest, RowHasSameBitsBesideOtherRows) {
  for (const char* const scheme : {"int4-w4a16-g128", "int8-w8a16-channel", "mxfp4-w4a16"})
    for (const auto& [outputs, hidden] : kSizes)
      expect_same_bits_beside_rows(scheme, outputs, hidden);
}

// Eight tokens use a separate quantization kernel. A token's bits do not depend on the others.
TEST_F(CudaNormedLinearTest, LinearThatQuantizesItsInputGivesBitsOfTwoKernels) {
  for (const char* const scheme : {"int8-w8a8", "fp8-w8a8-channel", "fp8-w8a8-block128x128"}) {
    for (const auto& [outputs, hidden] : kSizes)
      if (hidden % 128 == 0) expect_same_bits_beside_rows(scheme, outputs, hidden);
  }
}

TEST_F(CudaNormedLinearTest, ActivationThatIsNotFiniteGivesNanAsOneAfterAnother) {
  for (const char* const scheme : {"int8-w8a8", "fp8-w8a8-block128x128"}) {
    Linear linear = make(64, 1024, false, scheme);
    std::vector<uint16_t> bits = to_bf16(normal(8 * 1024));
    bits[5] = 0x7f80, bits[1024 + 700] = 0x7fc0;
    must(device_->upload(y_.data(), bits.data(), bits.size() * 2, {}));
    const auto apply = [&](int64_t tokens) {
      reset();
      must(linear.apply(bf16_matrix(y_, tokens, 1024), out(tokens)));
      return from_bf16(download<uint16_t>(out_));
    };
    const std::vector<float> want = apply(8), got = apply(3);
    for (int64_t i = 0; i < 3 * 64; ++i) {
      ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i])) << scheme << ", output " << i;
      ASSERT_TRUE(std::isnan(got[i]) || got[i] == want[i]) << scheme << ", output " << i;
    }
  }
}

TEST_F(CudaNormedLinearTest, ReplaysGiveBitsOfCalls) {
  Linear linear = make(4400, 2048, false, "int4-w4a16-g128");
  for (const int64_t tokens : {1, 4}) {
    const NormedInput there = input(tokens);
    NormedInput back = there;  // residual sums alternate between both buffers
    std::swap(back.norm.x, back.sum);
    const auto enqueue = [&]() -> Status {
      if (Status done = linear.apply({there, out(tokens)}, {}); !done) return done;
      return linear.apply({back, out(tokens)}, {});
    };
    reset();
    must(enqueue());
    must(enqueue());
    const std::vector<uint16_t> sums = download<uint16_t>(x_), want = download<uint16_t>(out_);
    const auto graph = must(device_->record(enqueue));
    ASSERT_NE(graph, nullptr);
    reset();
    must(graph->replay());
    must(graph->replay());
    EXPECT_EQ(download<uint16_t>(x_), sums);
    EXPECT_EQ(download<uint16_t>(out_), want);
  }
}

}  // namespace
}  // namespace moracle::cuda_normed_linear_test
