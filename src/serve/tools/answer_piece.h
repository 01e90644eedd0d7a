// The parts of an answer, as parsers find them in its text.
#pragma once

#include <string>

namespace moracle::serve {

struct AnswerPart {
  enum class Kind { kReasoning, kText, kCall };
  Kind kind = Kind::kText;
  std::string text;      ///< of a call: its arguments, a JSON object
  std::string id, name;  ///< of a call
};

/// New text of a part.
struct AnswerPiece {
  AnswerPart::Kind kind = AnswerPart::Kind::kText;
  std::string text;
  std::string id, name;  ///< of a call that begins
  bool begins = false;   ///< starts a new part; else `text` continues the last one
};

}  // namespace moracle::serve
