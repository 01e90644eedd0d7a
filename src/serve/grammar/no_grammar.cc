// A build without xgrammar.
#include "serve/grammar/grammar.h"

namespace moracle::serve {

#ifndef MORACLE_WITH_XGRAMMAR
Result<std::unique_ptr<GrammarEngine>> GrammarEngine::start(const Tokenizer&, int64_t,
                                                            std::span<const int32_t>,
                                                            const std::string&,
                                                            std::span<const int32_t>) {
  return Error{ErrorKind::kUnsupported, "", "",
               "a build with the headers of the grammar engine (apache-tvm-ffi, MORACLE_XGRAMMAR)",
               "this one has none"};
}
#endif

}  // namespace moracle::serve
