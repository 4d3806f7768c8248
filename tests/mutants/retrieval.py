"""Bugs planted in retrieval."""

from tests.mutants.mutant import Mutant

LOCAL = "tests/unit/retrieval/test_local.py"
CORPUS = "tests/unit/retrieval/test_corpus.py"
SERVICES = "tests/unit/retrieval/test_services.py"
SEMANTIC = "tests/unit/retrieval/test_semantic.py"

MUTANTS = [
    Mutant(  # the documents of whoever came first under a key
        pitfall="38",
        file="retrieval/local.py",
        old="if index is not None and index.documents == documents:",
        new="if index is not None:",
        test=f"{LOCAL}::test_pitfall_38_the_same_key_with_other_documents_shows_those",
    ),
    Mutant(  # one index for everybody
        pitfall="38",
        file="retrieval/local.py",
        old="own = tuple(documents)\n        return IndexSearch(index=lambda: self._index(key, own)",
        new="self._own = tuple(documents)\n        return IndexSearch(index=lambda: self._index(key, self._own)",
        test=f"{LOCAL}::test_pitfall_38_a_thousand_episodes_at_once_see_their_own_documents_only",
    ),
    Mutant(  # the index of the corpus as it was
        pitfall="38",
        file="retrieval/corpus.py",
        old="            digest.update(block)",
        new="            digest.update(b'')",
        test=f"{CORPUS}::test_pitfall_38_a_changed_corpus_or_setting_gets_a_new_index",
    ),
    Mutant(  # the index of other settings
        pitfall="38",
        file="retrieval/bm25.py",
        old='("stem" if self.settings.stem else "plain") + "-stop" * self.settings.remove_stop_words',
        new='"all"',
        test=f"{CORPUS}::test_pitfall_38_a_changed_corpus_or_setting_gets_a_new_index",
    ),
    Mutant(  # a service that is down finds nothing, and every episode earns 0
        pitfall="26",
        file="retrieval/services.py",
        old="        tries = self.service.max_retries + 1\n",
        new='        return {"results": []}\n        tries = self.service.max_retries + 1\n',
        test=f"{SERVICES}::test_pitfall_26_a_service_that_stays_down_ends_the_run_instead_of_finding_nothing",
    ),
    Mutant(  # whoever waits is in turn before the last request: all reach the time limit of the tool instead
        pitfall="26",
        file="retrieval/services.py",
        old="            return await self._post(connection.client, body)",
        new="            pass\n        return await self._post(connection.client, body)",
        test=f"{SERVICES}::test_pitfall_26_a_service_that_hangs_ends_the_run_however_many_episodes_wait",
    ),
    Mutant(  # a tool's own exception, which the model is told: every episode goes on without documents
        pitfall="26",
        file="retrieval/services.py",
        old="        except Exception as error:  # not all",
        new="        except OSError as error:  # not all",
        test=f"{SERVICES}::test_pitfall_26_whatever_a_request_raises_ends_the_run",
    ),
    Mutant(  # the same, from an address that is none
        pitfall="26",
        file="retrieval/services.py",
        old="    _check_address(key, url)\n",
        new="",
        test=f"{SERVICES}::test_pitfall_26_what_is_no_address_is_refused_before_the_first_search",
    ),
    Mutant(  # hybrid that never asks bm25
        pitfall="28",
        file="retrieval/hybrid.py",
        old="return by_words + np.float32",
        new="return np.float32",
        test=f"{SEMANTIC}::test_pitfall_28_both_lists_count_at_every_length",
    ),
    Mutant(  # hybrid that never asks the model
        pitfall="28",
        file="retrieval/hybrid.py",
        old="return fuse(self._bm25.scores(query), self._semantic.scores(query))",
        new="return self._bm25.scores(query)",
        test=f"{SEMANTIC}::test_pitfall_28_hybrid_differs_from_both_parts_at_one_and_two_documents",
    ),
]
