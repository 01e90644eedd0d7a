#include <algorithm>
#include <vector>

#include "base/text.h"
#include "moracle/quant.h"

namespace moracle {

std::span<const OnlineScheme> online_schemes() {
  static constexpr OnlineScheme kSchemes[] = {
      {"int8-per-channel", {kInt8StaticChannelSym, kInt8DynamicTokenSym}},
      {"int8-per-channel-weight-only", {kInt8StaticChannelSym, {}}},
      {"fp8-per-tensor", {kFp8StaticTensorSym, kFp8DynamicTokenSym}},
      {"fp8-per-channel", {kFp8StaticChannelSym, kFp8DynamicTokenSym}},
      {"fp8-per-block", {kFp8Static128BlockSym, kFp8Dynamic128Sym}},
      {"mxfp8", {kMxfp8Static, kMxfp8Dynamic}},
      {"fp8-w8a16-tensor", {kFp8StaticTensorSym, {}}},
      {"fp8-w8a16-channel", {kFp8StaticChannelSym, {}}},
      {"fp8-w8a16-block128x128", {kFp8Static128BlockSym, {}}},
      {"mxfp8-w8a16", {kMxfp8Static, {}}},
  };
  return kSchemes;
}

Result<Scheme> parse_online_scheme(std::string_view text) {
  std::vector<std::string> names;
  for (const OnlineScheme& online : online_schemes()) {
    const std::string own = name(online.scheme);
    if (text == online.name || text == own) return online.scheme;
    names.push_back(online.name == own ? own : str(online.name, " (", own, ")"));
  }
  return Error{ErrorKind::kInvalidArgument, "", str("online scheme '", text, "'"),
               "one of " + join(names), "it is unknown"};
}

}  // namespace moracle
