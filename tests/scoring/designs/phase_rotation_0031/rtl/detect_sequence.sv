module detect_sequence #(
    parameter NS              = 64,
    parameter NBW_PILOT_POS   = 6,
    parameter NBW_DATA_IN     = 8,
    parameter NBI_DATA_IN     = 2,
    parameter NBW_TH_UNLOCK   = 3,
    parameter NBW_ENERGY      = 10,
    parameter NS_PROC         = 23,
    parameter NS_PROC_OVERLAP = NS_PROC - 1
) (
    input  logic                                        clk,
    input  logic                                        rst_async_n,
    input  logic                                        i_valid,
    input  logic                                        i_enable,
    input  logic                                        i_proc_pol,
    input  logic [NBW_PILOT_POS-1:0]                    i_proc_pos,
    input  logic [NBW_TH_UNLOCK-1:0]                    i_static_unlock_threshold,
    input  logic [NBW_DATA_IN*(NS+NS_PROC_OVERLAP)-1:0] i_data_i,
    input  logic [NBW_DATA_IN*(NS+NS_PROC_OVERLAP)-1:0] i_data_q,
    output logic                                        o_proc_detected,
    output logic                                        o_locked
);
    localparam PIPE_DEPTH = 3;
    localparam WORDS      = 58;  // 32-bit words of a processing window
    localparam NBW_WORDS  = $clog2(WORDS + 1);
    localparam NBW_COUNT  = NBW_WORDS > NBW_TH_UNLOCK ? NBW_WORDS : NBW_TH_UNLOCK;
    localparam [NBW_ENERGY-1:0] DETECTION_THRESHOLD = 0;

    // Signs of the conjugate references, bit n for sample n, 1 for -1.
    localparam [NS_PROC-1:0] CONJ_H_RE = 23'b10101010111011101000000;
    localparam [NS_PROC-1:0] CONJ_H_IM = 23'b11011001100011010001110;
    localparam [NS_PROC-1:0] CONJ_V_RE = 23'b11010110101100100001110;
    localparam [NS_PROC-1:0] CONJ_V_IM = 23'b10000101011110000101011;

    typedef enum logic {ST_DETECT_SEQUENCE, ST_DETECT_PROC} state_t;

    state_t                         curr_state;
    logic [NBW_COUNT-1:0]           ts_count_dff, ts_undetected_count_dff;
    logic                           last_word, lost;
    logic [1:0]                     mode;
    logic                           w_aware_mode;

    logic [PIPE_DEPTH-1:0]          proc_enable_dff;
    logic                           proc_enable, proc_pol_dff, proc_detected;
    logic signed [NBW_DATA_IN-1:0]  proc_buffer_i_dff [NS_PROC];
    logic signed [NBW_DATA_IN-1:0]  proc_buffer_q_dff [NS_PROC];
    logic [NBW_DATA_IN*NS_PROC-1:0] window_i, window_q;
    logic [NS_PROC-1:0]             conj_proc_seq [2];
    logic [NBW_ENERGY-1:0]          proc_calc_energy;

    // As if/else, so that inputs not driven yet enable nothing.
    always_comb
        if (i_valid && i_enable) proc_enable = 1'b1;
        else                     proc_enable = 1'b0;

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n) proc_enable_dff <= '0;
        else              proc_enable_dff <= {proc_enable_dff[PIPE_DEPTH-2:0], proc_enable};

    always_ff @(posedge clk)
        if (proc_enable)
            for (int n = 0; n < NS_PROC; n++) begin
                proc_buffer_i_dff[n] <= i_data_i[(i_proc_pos + n)*NBW_DATA_IN +: NBW_DATA_IN];
                proc_buffer_q_dff[n] <= i_data_q[(i_proc_pos + n)*NBW_DATA_IN +: NBW_DATA_IN];
            end

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n)     proc_pol_dff <= 1'b0;
        else if (proc_enable) proc_pol_dff <= i_proc_pol;

    assign conj_proc_seq[0] = proc_pol_dff ? CONJ_V_RE : CONJ_H_RE;
    assign conj_proc_seq[1] = proc_pol_dff ? CONJ_V_IM : CONJ_H_IM;

    for (genvar n = 0; n < NS_PROC; n++) begin : g_window
        assign window_i[n*NBW_DATA_IN +: NBW_DATA_IN] = proc_buffer_i_dff[n];
        assign window_q[n*NBW_DATA_IN +: NBW_DATA_IN] = proc_buffer_q_dff[n];
    end

    cross_correlation #(
        .NS_DATA_IN (NS_PROC),
        .NBW_DATA_IN(NBW_DATA_IN),
        .NBI_DATA_IN(NBI_DATA_IN),
        .NBW_ENERGY (NBW_ENERGY)
    ) uu_cross_correlation (
        .clk         (clk),
        .rst_async_n (rst_async_n),
        .i_enable    (proc_enable_dff[0]),
        .i_mode      (mode),
        .i_data_i    (window_i),
        .i_data_q    (window_q),
        .i_conj_seq_i(conj_proc_seq[0]),
        .i_conj_seq_q(conj_proc_seq[1]),
        .o_energy    (proc_calc_energy),
        .o_aware_mode(w_aware_mode)
    );

    assign proc_detected = proc_enable_dff[PIPE_DEPTH-1] && proc_calc_energy >= DETECTION_THRESHOLD;

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n) o_proc_detected <= 1'b0;
        else              o_proc_detected <= proc_detected;

    assign last_word = ts_count_dff == WORDS - 1;

    // Lost: nothing detected in a window's last word, with as many windows missed before as the threshold says.
    // As one magnitude comparison an unknown threshold makes it unknown, and the search starts anew at the first miss.
    assign lost = !o_proc_detected
                  && {last_word, ts_undetected_count_dff} >= {1'b1, NBW_COUNT'(i_static_unlock_threshold)};

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n)
            curr_state <= ST_DETECT_SEQUENCE;
        else if (curr_state == ST_DETECT_SEQUENCE) begin
            if (o_proc_detected && w_aware_mode) curr_state <= ST_DETECT_PROC;
        end else begin
            if (!lost) curr_state <= ST_DETECT_PROC;
            else       curr_state <= ST_DETECT_SEQUENCE;
        end

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n)                          ts_count_dff <= '0;
        else if (curr_state == ST_DETECT_SEQUENCE) ts_count_dff <= '0;
        else if (i_valid && last_word)             ts_count_dff <= '0;
        else if (i_valid)                          ts_count_dff <= ts_count_dff + 1'b1;

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n)                          ts_undetected_count_dff <= '0;
        else if (curr_state == ST_DETECT_SEQUENCE) ts_undetected_count_dff <= '0;
        else if (last_word && o_proc_detected)     ts_undetected_count_dff <= '0;
        else if (last_word)                        ts_undetected_count_dff <= ts_undetected_count_dff + 1'b1;

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n)                          o_locked <= 1'b0;
        else if (curr_state == ST_DETECT_PROC) begin
            if (o_proc_detected) o_locked <= 1'b1;
            else if (lost)       o_locked <= 1'b0;
        end

    // Every window missed moves on to the next mode; a detection goes back to the first.
    always_comb
        if (curr_state == ST_DETECT_SEQUENCE || o_proc_detected) mode = 2'd0;
        else if (ts_undetected_count_dff > 3)                    mode = 2'd3;
        else                                                     mode = ts_undetected_count_dff[1:0];
endmodule
