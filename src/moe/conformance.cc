#include "moe/conformance.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <random>

#include "base/scalar.h"
#include "base/text.h"
#include "base/try.h"
#include "quant/codec.h"

namespace moracle::conformance {

std::string name(const Shape& s) {
  return str(s.num_experts, "x", s.hidden_size, "x", s.intermediate_size, "x", s.top_k);
}

Result<Shape> parse_shape(std::string_view text) {
  Shape shape{};
  int64_t* const fields[] = {&shape.num_experts, &shape.hidden_size, &shape.intermediate_size,
                             &shape.top_k};
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = true;
  for (int64_t* field : fields) {
    if (field != fields[0]) good = good && at != end && *at++ == 'x';
    const auto [next, error] = good ? std::from_chars(at, end, *field)
                                    : std::from_chars_result{at, std::errc::invalid_argument};
    good = good && error == std::errc() && *field >= 1 && *field <= 1 << 20;
    at = next;
  }
  if (good && at == end && shape.top_k <= shape.num_experts) return shape;
  return Error{ErrorKind::kInvalidArgument, "", "--shape",
               "experts x hidden size x intermediate size x top_k, such as 8x64x32x2",
               str("it is '", text, "'")};
}

std::string_view name(Spread spread) {
  constexpr std::string_view kNames[] = {"uniform", "one-expert", "holes"};
  return kNames[static_cast<int>(spread)];
}

std::string reproducer(const Case& c) {
  return str("moracle check --backend ", c.backend, " --scheme ", name(c.scheme), " --shape ",
             name(c.shape), " --tokens ", c.num_tokens, " --spread ", name(c.spread),
             c.bias ? " --bias" : "");
}

std::vector<Scheme> schemes() {
  auto weight_only = [](QuantKey key, bool symmetric = true) {
    key.symmetric = symmetric;
    return Scheme{key, {}};
  };
  return {{kBF16Weight, {}},
          {kF16Weight, {}},
          {kF32Weight, {}},
          {kInt8StaticChannelSym, kInt8DynamicTokenSym},
          weight_only(int4_static_group(128)),
          weight_only(int4_static_group(32)),
          weight_only(int4_static_group(GroupShape::kAll)),
          weight_only(int4_static_group(64), false),
          weight_only(int8_static_group(128)),
          weight_only(int8_static_group(GroupShape::kAll)),
          weight_only(int8_static_group(64), false),
          {kFp8StaticTensorSym, kFp8DynamicTokenSym},
          {kFp8StaticTensorSym, kFp8StaticTensorSym},
          {kFp8StaticChannelSym, kFp8DynamicTokenSym},
          {kFp8Static128BlockSym, kFp8Dynamic128Sym},
          {fp8_static_block(16, 32), fp8_dynamic_group(32)},
          weight_only(kFp8StaticChannelSym),
          weight_only(kFp8Static128BlockSym),
          {kMxfp8Static, kMxfp8Dynamic},
          weight_only(kMxfp8Static),
          weight_only(kMxfp4Static)};
}

std::vector<Shape> shapes() {
  // One panel; less than one; around tiles of 16 and 4; odd everywhere; groups that do not divide;
  // top_k = 1 and = num_experts; the shape of the model in the box.
  return {{1, 16, 16, 1},  {2, 15, 8, 1},    {4, 64, 32, 2},  {3, 33, 17, 2},
          {8, 130, 34, 8}, {2, 200, 136, 1}, {5, 129, 47, 3}, {16, 256, 128, 4}};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Backend& backend : backends()) {
    if (backend.kernels == nullptr) continue;
    for (const Scheme& scheme : schemes()) {
      for (const Shape& shape : shapes()) {
        for (int64_t tokens : {0, 1, 3, 4, 5, 17})
          all.push_back({backend.name, scheme, shape, tokens});
        for (Spread spread : {Spread::kOneExpert, Spread::kHoles}) {
          all.push_back({backend.name, scheme, shape, 9, spread});
        }
        all.push_back({backend.name, scheme, shape, 4, Spread::kUniform, true});
      }
    }
  }
  return all;
}

namespace {

// What the 256 bytes of a quantized type mean, each one code of eight bits or two of four.
struct Bytes {
  std::array<bool, 256> finite;  // every code a number: no NaN, no infinity
  double largest = 0;            // magnitude of any such code
};

Bytes bytes_of(DType type) {
  Bytes bytes;
  bytes.finite.fill(true);
  visit_codec(type, [&]<class Codec>() {
    for (size_t byte = 0; byte < bytes.finite.size(); ++byte) {
      // As long as the longest element: every codec is compiled here, also those of floats.
      const std::array<std::byte, 4> codes = {static_cast<std::byte>(byte)};
      for (int i = 0; i < 8 / bits(type); ++i) {
        const double value = Codec::decode(codes.data(), i);
        bytes.finite[byte] &= std::isfinite(value);
        if (std::isfinite(value)) bytes.largest = std::max(bytes.largest, std::fabs(value));
      }
    }
  });
  return bytes;
}

}  // namespace

CanonicalMatrix random_matrix(const MatrixShape& shape, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  CanonicalMatrix m;
  m.n = shape.n;
  m.k = shape.k;
  m.key = shape.key;
  m.storage.resize(m.n * m.row_bytes());
  const float size = 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(shape.k, 1)));
  for (int64_t i = 0; i < (shape.key.quantized() ? 0 : m.n * m.k); ++i) {
    const float value = uniform(engine) * 2 * size;
    auto* at = m.storage.data() + i * bits(m.key.dtype) / 8;
    if (m.key.dtype == DType::kF32)
      *reinterpret_cast<float*>(at) = value;
    else
      *reinterpret_cast<uint16_t*>(at) =
          m.key.dtype == DType::kF16 ? float_to_f16(value) : float_to_bf16(value);
  }
  if (shape.key.quantized()) {
    const Bytes bytes = bytes_of(m.key.dtype);
    for (std::byte& code : m.storage) {
      uint8_t byte = static_cast<uint8_t>(engine() >> 56);
      while (!bytes.finite[byte]) --byte;  // NaN and infinity are no weights
      code = static_cast<std::byte>(byte);
    }
    const auto range = static_cast<float>(bytes.largest);
    m.scales.resize(m.scale_rows() * m.scale_cols());
    for (float& scale : m.scales) {
      scale = size / range * (1.5f + uniform(engine));
      if (m.key.scale_dtype == DType::kF8E8M0) scale = std::exp2(std::round(std::log2(scale)));
    }
    if (!shape.key.symmetric) {
      m.zero_points.resize(m.scales.size());
      for (int8_t& zero : m.zero_points) zero = static_cast<int8_t>(uniform(engine) * range / 2);
    }
  }
  if (shape.bias) {
    m.bias.resize(m.n);
    for (float& b : m.bias) b = uniform(engine);
  }
  m.codes = m.storage;
  return m;
}

DescribedWeights random_weights(const LayerSpec& spec, uint64_t seed) {
  const std::vector<MatrixShape> matrices = spec.matrices();
  std::vector<CanonicalMatrix> w13, w2;
  for (int64_t e = 0; e < spec.num_experts; ++e) {
    w13.push_back(random_matrix(matrices[0], seed + 2 * e));
    w2.push_back(random_matrix(matrices[1], seed + 2 * e + 1));
  }
  DescribedWeights weights{spec, DescribedMatrix::from(spec.scheme, std::move(w13)),
                           DescribedMatrix::from(spec.scheme, std::move(w2))};
  if (spec.scheme.activation && !spec.scheme.activation->dynamic) {
    // Different from expert to expert; small enough that some inputs saturate.
    std::vector<float> scales13, scales2;
    for (int64_t e = 0; e < spec.num_experts; ++e) {
      scales13.push_back(0.004f + 0.001f * static_cast<float>(e % 5));
      scales2.push_back(0.002f + 0.0005f * static_cast<float>(e % 3));
    }
    weights.w13.set_input_scales(std::move(scales13));
    weights.w2.set_input_scales(std::move(scales2));
  }
  return weights;
}

namespace {

struct Inputs {
  std::vector<float> hidden;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Inputs random_inputs(const Case& c, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  Inputs in;
  in.hidden.resize(c.num_tokens * c.shape.hidden_size);
  for (float& x : in.hidden) x = normal(engine);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    // A random order of the experts: the first top_k are distinct.
    std::vector<int32_t> order(c.shape.num_experts);
    for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
    std::shuffle(order.begin(), order.end(), engine);
    if (c.spread == Spread::kOneExpert)
      std::iter_swap(order.begin(), std::find(order.begin(), order.end(), 0));
    for (int64_t j = 0; j < c.shape.top_k; ++j) {
      int32_t id = order[j];
      if (c.spread == Spread::kHoles && engine() % 3 == 0) {
        id = engine() % 2 == 0 ? -1 : static_cast<int32_t>(c.shape.num_experts);
      }
      in.ids.push_back(id);
      in.weights.push_back(0.05f + static_cast<float>(engine() % 1000) / 1000);
    }
  }
  return in;
}

Outcome compare(const Case& c, const Expected& want, std::span<const float> got) {
  Outcome outcome;
  for (size_t i = 0; i < got.size(); ++i) {
    // Results below the smallest normal number may be flushed on some devices.
    const double bound = want.bound[i] + 0x1p-126, error = std::fabs(got[i] - want.output[i]);
    outcome.worst = std::max(outcome.worst, error / bound);
    if (error <= bound || outcome.kind == Outcome::kFailed) continue;
    outcome.kind = Outcome::kFailed;
    outcome.message = str("token ", static_cast<int64_t>(i) / c.shape.hidden_size, ", column ",
                          static_cast<int64_t>(i) % c.shape.hidden_size, ": is ", got[i],
                          ", must be ", want.output[i], " within ", bound, "; ", reproducer(c));
  }
  return outcome;
}

}  // namespace

Outcome run(const Case& c, std::shared_ptr<Device> device) {
  LayerSpec spec{.name = "case",
                 .num_experts = c.shape.num_experts,
                 .hidden_size = c.shape.hidden_size,
                 .intermediate_size = c.shape.intermediate_size,
                 .top_k = c.shape.top_k,
                 .scheme = c.scheme,
                 .bias = c.bias};
  Request request{.layer = spec,
                  .max_num_tokens = std::max<int64_t>(c.num_tokens, 1),
                  .backend = std::string(c.backend)};
  const Selection selection = select(request, Machine::here());
  if (!selection.plan) return {Outcome::kRefused, selection.chosen().error().to_string(), 0};

  // The seed follows from the case, so that the reproducer sees the same numbers.
  const uint64_t seed =
      std::hash<std::string>{}(reproducer({"", c.scheme, c.shape, c.num_tokens, c.spread, c.bias}));
  const Inputs in = random_inputs(c, seed);
  const Expected want = expected(spec, random_weights(spec, seed), in.hidden, in.ids, in.weights);
  auto failed = [&](const Error& error) {
    return Outcome{Outcome::kFailed, error.to_string() + "; " + reproducer(c), 0};
  };
  auto moe = FusedMoe::make(random_weights(spec, seed), selection, device);
  if (!moe) return failed(moe.error());
  auto on_device = [&](const auto& host) -> Result<Buffer> {
    const size_t bytes = host.size() * sizeof(host[0]);
    MORACLE_TRY(Buffer buffer, device->allocate(bytes));
    MORACLE_CHECK(device->upload(buffer.data(), host.data(), bytes));
    return buffer;
  };
  auto hidden = on_device(in.hidden);
  auto ids = on_device(in.ids);
  auto weights = on_device(in.weights);
  std::vector<float> got(in.hidden.size(), NAN);
  auto output = on_device(got);
  for (const auto* buffer : {&hidden, &ids, &weights, &output}) {
    if (!*buffer) return failed(buffer->error());
  }
  const int64_t rows = c.num_tokens, cols = spec.hidden_size;
  Status done = moe->apply(Matrix::f32(hidden->as<float>(), rows, cols), {ids->as<int32_t>()},
                           {weights->as<float>()}, Matrix::f32(output->as<float>(), rows, cols));
  if (done) done = device->download(got.data(), output->data(), got.size() * sizeof(float));
  if (done) done = device->synchronize();
  if (!done) return failed(done.error());
  return compare(c, want, got);
}

}  // namespace moracle::conformance
