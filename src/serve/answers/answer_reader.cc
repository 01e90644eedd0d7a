#include "serve/answers/answer_reader.h"

#include <utility>

namespace moracle::serve {

AnswerReader::AnswerReader(const AnswerForm& form) : tools_(form.tools) {
  if (form.reasoning && form.reasoning->has_channels) {
    channels_.emplace(tools_ ? &tools_->tools : nullptr);
    return;
  }
  if (form.reasoning) reasoning_.emplace(*form.reasoning, form.is_reasoning);
  if (tools_) calls_.emplace(tools_->format, tools_->tools, /*streams=*/true);
}

bool AnswerReader::has_calls() const {
  return channels_ ? channels_->has_calls() : calls_ && calls_->has_calls();
}

bool AnswerReader::is_reasoning() const {
  return channels_ ? channels_->is_reasoning() : reasoning_ && reasoning_->is_reasoning();
}

std::vector<AnswerPiece> AnswerReader::push(std::string_view text) {
  std::vector<AnswerPiece> pieces;
  if (is_complete_) return pieces;
  if (channels_) {
    add(channels_->push(text), pieces);
  } else if (reasoning_) {
    ReasoningParser::Delta delta = reasoning_->push(text);
    add(AnswerPart::Kind::kReasoning, std::move(delta.reasoning), pieces);
    add_text(delta.text, pieces);
  } else {
    add_text(text, pieces);
  }
  return pieces;
}

void AnswerReader::finish(bool is_whole, std::vector<AnswerPiece>& pieces) {
  if (is_complete_) return;
  if (channels_) return add(channels_->finish(), pieces);
  if (reasoning_) {
    ReasoningParser::Delta delta = reasoning_->finish();
    add(AnswerPart::Kind::kReasoning, std::move(delta.reasoning), pieces);
    add_text(delta.text, pieces);
  }
  if (calls_ && !is_complete_) add(calls_->finish(is_whole), pieces);
}

void AnswerReader::add_text(std::string_view text, std::vector<AnswerPiece>& pieces) {
  if (calls_)
    add(calls_->push(text), pieces);
  else
    add(AnswerPart::Kind::kText, std::string(text), pieces);
}

void AnswerReader::add(std::vector<AnswerPiece>&& more, std::vector<AnswerPiece>& pieces) {
  for (AnswerPiece& piece : more) pieces.push_back(std::move(piece));
}

void AnswerReader::add(AnswerPart::Kind kind, std::string text, std::vector<AnswerPiece>& pieces) {
  if (text.empty()) return;
  const bool begins = last_ != kind;
  last_ = kind;
  pieces.push_back({.kind = kind, .text = std::move(text), .begins = begins});
}

void AnswerReader::add(ToolCallParser::Delta&& delta, std::vector<AnswerPiece>& pieces) {
  for (AnswerPiece& piece : delta.pieces) {
    const bool is_second = piece.begins && num_calls_ > 0;
    if (!tools_->parallel &&
        (is_second || (piece.kind == AnswerPart::Kind::kText && num_calls_ > 0)))
      break;
    if (piece.kind == AnswerPart::Kind::kText) {
      add(piece.kind, std::move(piece.text), pieces);
      continue;
    }
    num_calls_ += piece.begins ? 1 : 0;
    last_ = piece.kind;
    pieces.push_back(std::move(piece));
  }
  is_complete_ = !tools_->parallel && calls_->num_complete() > 0;
}

}  // namespace moracle::serve
