"""Advantage estimators: one short file each, with its formula, source and departures at the top.

    estimator              file                       credits        compares with                       needs
    gae                    gae.py                     tokens         the critic                          a critic
    turn-gae               turn_gae.py                turns          the critic, once a turn             a critic
    bilevel-gae            bilevel_gae.py             both           the critic                          a critic
    grpo                   grpo.py                    trajectories   its group, in stds                  groups
    dr-grpo                dr_grpo.py                 trajectories   its group                           groups
    rloo                   rloo.py                    trajectories   the others of its group             groups
    gigpo                  gigpo.py                   turns          its group, and turns in its state   groups, states
    reward-to-go           reward_to_go.py            turns          the others who reached the turn
    reinforce++            reinforce_pp.py            tokens         the batch
    reinforce++-baseline   reinforce_pp_baseline.py   trajectories   its group, then the batch           groups

Tables worked by hand are in `tests/credit`, exact gradients in `tests/oracle`.
"""
