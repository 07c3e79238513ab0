module control_fsm #(
    parameter NBW_WAIT = 32
) (
    input  logic                clk,
    input  logic                rst_async_n,
    input  logic                i_enable,
    input  logic                i_subsampling,
    output logic                o_subsampling,
    input  logic                i_valid,
    output logic                o_valid,
    input  logic                i_calc_valid,
    input  logic                i_calc_fail,
    input  logic [NBW_WAIT-1:0] i_wait,
    output logic                o_start_calc
);
    localparam NBW_CNT = 8;
    localparam [NBW_CNT-1:0] CAPTURE_SUBSAMPLED = 128;
    localparam [NBW_CNT-1:0] CAPTURE_FULL       = 8;
    localparam [NBW_CNT-1:0] CALC_START         = 16 - 1;

    typedef enum logic [2:0] {
        PROC_CONTROL_CAPTURE_ST,
        PROC_DATA_CAPTURE_ST,
        PROC_CALC_START_ST,
        PROC_CALC_ST,
        PROC_WAIT_ST
    } state_t;

    state_t              state_ff, next_state;
    logic [NBW_CNT-1:0]  cnt_ff;
    logic [NBW_WAIT-1:0] wait_ff, timecnt_ff;
    logic                cnt_rstctrl, cnt_zero, capturing, starting;

    assign cnt_rstctrl = state_ff == PROC_CONTROL_CAPTURE_ST;
    assign capturing   = state_ff == PROC_DATA_CAPTURE_ST;
    assign starting    = state_ff == PROC_CALC_START_ST;
    assign cnt_zero    = cnt_ff == 0;

    always_comb begin
        next_state = state_ff;
        case (state_ff)
            PROC_CONTROL_CAPTURE_ST: if (i_enable) next_state = PROC_DATA_CAPTURE_ST;
            PROC_DATA_CAPTURE_ST:    if (cnt_zero) next_state = PROC_CALC_START_ST;
            PROC_CALC_START_ST:      if (cnt_zero) next_state = PROC_CALC_ST;
            PROC_CALC_ST:
                if (i_calc_fail)       next_state = PROC_CONTROL_CAPTURE_ST;
                else if (i_calc_valid) next_state = PROC_WAIT_ST;
            PROC_WAIT_ST:
                if (!i_enable || timecnt_ff == 0) next_state = PROC_CONTROL_CAPTURE_ST;
            default: next_state = PROC_CONTROL_CAPTURE_ST;
        endcase
    end

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n) state_ff <= PROC_CONTROL_CAPTURE_ST;
        else              state_ff <= next_state;

    // The controls hold from the cycle that leaves the first state.
    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n) begin
            o_subsampling <= 1'b0;
            wait_ff       <= '0;
        end else if (cnt_rstctrl && i_enable) begin
            o_subsampling <= i_subsampling;
            wait_ff       <= i_wait;
        end

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n)                              cnt_ff <= '0;
        else if (cnt_rstctrl && i_subsampling)         cnt_ff <= CAPTURE_SUBSAMPLED;
        else if (cnt_rstctrl)                          cnt_ff <= CAPTURE_FULL;
        else if (capturing && cnt_zero)                cnt_ff <= CALC_START;
        else if (o_valid || (starting && !cnt_zero))   cnt_ff <= cnt_ff - 1'b1;

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n)                                         timecnt_ff <= '0;
        else if (state_ff == PROC_CALC_ST && i_calc_valid)        timecnt_ff <= wait_ff;
        else if (state_ff == PROC_WAIT_ST && timecnt_ff != 0)     timecnt_ff <= timecnt_ff - 1'b1;

    assign o_valid      = capturing && i_valid && !cnt_zero;
    assign o_start_calc = starting;
endmodule
