"""Source inference as a callback: a result at the end of the run, in the terms of the run's folder."""

from federation_under_attack import audit_of, trained

from app.attacks.source_inference import infer_sources
from app.results.attacks.source_inference import SourceRecord
from callbacks import SourceInference


def test_result_of_a_run(tmp_path):
    """The same as that of the attack on the transcript."""
    federation, transcript = trained(tmp_path, epochs=3, callbacks=[SourceInference()])
    (record,) = (result for result in federation.results if isinstance(result, SourceRecord))
    expected = SourceRecord.of(infer_sources(audit_of(federation, transcript)))
    assert record.rows == expected.rows
