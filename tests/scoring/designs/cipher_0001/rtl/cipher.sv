// Eight rounds of a Feistel network, one a clock.
module cipher (
    input  logic        clk,
    input  logic        rst_n,
    input  logic        start,
    input  logic [31:0] data_in,
    input  logic [15:0] key,
    output logic [31:0] data_out,
    output logic        done
);
    typedef enum logic [1:0] {IDLE, ROUND, FINISH} state_t;
    state_t state;
    logic [15:0] left, right, round_key;
    logic [2:0]  round;

    function automatic [15:0] f_function(input [15:0] half, input [15:0] subkey);
        logic [15:0] mixed;
        mixed = half ^ subkey;
        f_function = {mixed[11:0], mixed[15:12]} + subkey;
    endfunction

    always_ff @(posedge clk or negedge rst_n)
        if (!rst_n) begin
            state <= IDLE;
            {left, right, round_key, round, data_out, done} <= 0;
        end else begin
            done <= 0;
            case (state)
                IDLE:
                    if (start) begin
                        {left, right} <= data_in;
                        round_key <= key;
                        round <= 0;
                        state <= ROUND;
                    end
                ROUND: begin
                    left <= right;
                    right <= left ^ f_function(right, round_key);
                    round_key <= {round_key[14:0], round_key[15]} ^ {13'd0, round};
                    round <= round + 1;
                    if (round == 7) state <= FINISH;
                end
                default: begin
                    data_out <= {right, left};
                    done <= 1;
                    state <= IDLE;
                end
            endcase
        end
endmodule
