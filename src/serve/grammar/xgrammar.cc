// xgrammar, through the C++ interface of its package for Python: TVM's foreign functions by name.
#ifdef MORACLE_WITH_XGRAMMAR
#include <tvm/ffi/reflection/accessor.h>
#include <tvm/ffi/tvm_ffi.h>

#include <limits>
#include <mutex>

#include "base/printable.h"
#include "base/try.h"
#include "serve/grammar/grammar.h"
#include "serve/grammar/token_bytes.h"

namespace moracle::serve {
namespace {

namespace ffi = tvm::ffi;

constexpr int64_t kCacheBytes = int64_t{256} << 20;  // of compiled grammars
constexpr int64_t kMaxSpaces = 16;  // between two parts of JSON: some models never stop indenting
constexpr int64_t kAnyRollback = -1;
const ffi::Any kDefault = nullptr;

// The library throws. Its messages begin with the time and a source file.
template <class Work>
auto guarded(ErrorKind kind, const char* need, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    std::string fact = error.what();
    if (const size_t at = fact.find(".cc:"); at != fact.npos) {
      const size_t end = fact.find(": ", at);
      if (end != fact.npos) fact.erase(0, end + 2);
    }
    while (!fact.empty() && fact.back() == '\n') fact.pop_back();
    return Error{kind, "", "", need, printable(fact)};
  }
}

struct Functions {
  ffi::Function make_tokenizer, make_compiler, compile_schema, make_matcher, fill, accept;

  static Functions find() {
    const auto method = [](const std::string& type, const char* name) {
      return ffi::reflection::GetMethod("xgrammar.tvm_ffi_binding." + type, name);
    };
    return {method("TokenizerInfo", "__ffi_init__"),
            method("GrammarCompiler", "__ffi_init__"),
            method("GrammarCompiler", "compile_json_schema"),
            method("GrammarMatcher", "__ffi_init__"),
            method("GrammarMatcher", "fill_next_token_bitmask"),
            method("GrammarMatcher", "accept_token")};
  }
};

class XgrammarMatcher : public GrammarMatcher {
 public:
  XgrammarMatcher(const Functions& functions, ffi::Any matcher, int64_t vocab_size)
      : functions_(functions), matcher_(std::move(matcher)), bits_((vocab_size + 31) / 32) {}

  Status mask(std::span<float> logits) override {
    return guarded(ErrorKind::kUnsupported, "a grammar that goes on", [&]() -> Status {
      int64_t shape[] = {1, static_cast<int64_t>(bits_.size())}, strides[] = {shape[1], 1};
      DLTensor tensor{bits_.data(), {kDLCPU, 0}, 2, {kDLInt, 32, 1}, shape, strides, 0};
      const bool changes =
          functions_.fill(matcher_, ffi::TensorView(&tensor), 0, false).cast<bool>();
      for (size_t id = 0; changes && id < logits.size(); ++id) {
        if (!(static_cast<uint32_t>(bits_[id / 32]) >> (id % 32) & 1))
          logits[id] = -std::numeric_limits<float>::infinity();
      }
      return {};
    });
  }

  Status accept(int32_t id) override {
    return guarded(ErrorKind::kUnsupported, "a grammar that goes on", [&]() -> Status {
      if (functions_.accept(matcher_, int64_t{id}, false).cast<bool>()) return {};
      return Error{ErrorKind::kUnsupported, "", "", "a token of the grammar", "it has another"};
    });
  }

 private:
  const Functions& functions_;
  ffi::Any matcher_;
  std::vector<int32_t> bits_;  // one per token
};

class XgrammarGrammar : public Grammar {
 public:
  XgrammarGrammar(const Functions& functions, ffi::Any grammar, int64_t vocab_size)
      : functions_(functions), grammar_(std::move(grammar)), vocab_size_(vocab_size) {}

  Result<std::unique_ptr<GrammarMatcher>> start() const override {
    using Made = Result<std::unique_ptr<GrammarMatcher>>;
    return guarded(ErrorKind::kUnsupported, "a grammar", [&]() -> Made {
      ffi::Any matcher = functions_.make_matcher(grammar_, kDefault, false, kAnyRollback, kDefault);
      return std::unique_ptr<GrammarMatcher>(
          std::make_unique<XgrammarMatcher>(functions_, std::move(matcher), vocab_size_));
    });
  }

 private:
  const Functions& functions_;
  const ffi::Any grammar_;
  const int64_t vocab_size_;
};

class XgrammarEngine : public GrammarEngine {
 public:
  XgrammarEngine(Functions functions, ffi::Any compiler, int64_t vocab_size)
      : functions_(std::move(functions)), compiler_(std::move(compiler)), vocab_size_(vocab_size) {}

  Result<std::shared_ptr<const Grammar>> json_schema(const std::string& schema,
                                                     bool strict) override {
    using Made = Result<std::shared_ptr<const Grammar>>;
    return guarded(
        ErrorKind::kInvalidArgument, "a JSON schema that xgrammar supports", [&]() -> Made {
          const std::lock_guard lock(mutex_);
          ffi::Any grammar = functions_.compile_schema(
              compiler_, ffi::String(schema), /*any_whitespace=*/true,
              /*indent=*/kDefault, /*separators=*/kDefault, strict, kMaxSpaces,
              /*any_order=*/false);
          return std::shared_ptr<const Grammar>(
              std::make_shared<const XgrammarGrammar>(functions_, std::move(grammar), vocab_size_));
        });
  }

 private:
  const Functions functions_;  // outlives all grammars
  std::mutex mutex_;
  ffi::Any compiler_;
  const int64_t vocab_size_;
};

}  // namespace

Result<std::unique_ptr<GrammarEngine>> GrammarEngine::start(const Tokenizer& tokenizer,
                                                            int64_t vocab_size,
                                                            std::span<const int32_t> stop_ids) {
  MORACLE_TRY(const std::vector<std::string> texts, token_bytes(tokenizer, vocab_size));
  using Made = Result<std::unique_ptr<GrammarEngine>>;
  return guarded(ErrorKind::kUnsupported, "xgrammar as this build knows it", [&]() -> Made {
    ffi::Array<ffi::Any> vocabulary, stops;
    for (const std::string& text : texts) vocabulary.push_back(ffi::Bytes(text));
    for (const int32_t id : stop_ids) stops.push_back(int64_t{id});
    Functions functions = Functions::find();
    constexpr int kRawText = 0, kThreads = 1;
    const ffi::Any info = functions.make_tokenizer(vocabulary, kRawText, vocab_size, stops, false);
    ffi::Any compiler = functions.make_compiler(info, kThreads, true, kCacheBytes);
    return std::unique_ptr<GrammarEngine>(
        std::make_unique<XgrammarEngine>(std::move(functions), std::move(compiler), vocab_size));
  });
}

}  // namespace moracle::serve
#endif
