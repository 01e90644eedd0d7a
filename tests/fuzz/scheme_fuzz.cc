// libFuzzer: the bytes are the name of a scheme or shape, or select its words. A parsed scheme must
// have an equivalent name, and its matrices must have a layout and a choice.
#include <algorithm>

#include "conformance/conformance.h"
#include "fuzz/bytes.h"
#include "fuzz/read_all.h"
#include "layout/layout.h"
#include "moracle/oracle.h"

namespace moracle::testing::scheme_fuzz {

namespace {

void use(const Scheme& scheme) {
  const auto again = parse_scheme(name(scheme));
  require(again.ok() && *again == scheme && !describe(scheme).empty());
  const LayerSpec layer{
      .name = "layer", .hidden_size = 7, .intermediate_size = 5, .scheme = scheme};
  require(!explain(select({.layer = layer}, Machine::known()[0])).empty());
  for (const MatrixShape& shape : layer.matrices()) {
    const CanonicalMatrix matrix = conformance::random_matrix(shape, 1);
    for (const Layout* layout : layouts()) {
      std::vector<std::byte> packed(layout->sections(shape).bytes);
      const auto& holds = layout->holds;
      if (std::find(holds.begin(), holds.end(), shape.key.dtype) == holds.end()) continue;
      pack(*layout, matrix, packed.data());
    }
  }
}

std::string in_words(testing::Bytes bytes) {
  constexpr const char* kWords[] = {"int4",   "int8",   "fp8",   "mxfp8",      "mxfp4",
                                    "-w4a16", "-w8a16", "-w8a8", "-channel",   "-tensor",
                                    "-g",     "-block", "x",     "-asym",      "-static",
                                    "0",      "1",      "128",   "2147483647", "bf16"};
  std::string text;
  while (!bytes.empty()) text += bytes.one_of(kWords);
  return text;
}

void parse(std::string_view text) {
  if (const auto scheme = parse_scheme(text); passes(scheme)) use(*scheme);
  if (const auto shape = conformance::parse_shape(text); passes(shape)) {
    const auto again = conformance::parse_shape(name(*shape));
    require(again.ok() && *again == *shape);
  }
}

}  // namespace

int run(const uint8_t* data, size_t size) {
  parse({reinterpret_cast<const char*>(data), size});
  if (size < 16) parse(in_words(testing::Bytes({data, size})));
  return 0;
}

}  // namespace moracle::testing::scheme_fuzz
