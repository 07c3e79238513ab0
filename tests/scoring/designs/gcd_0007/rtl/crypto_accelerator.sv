module crypto_accelerator #(
    parameter WIDTH = 8
) (
    input  logic             clk,
    input  logic             rst,
    input  logic [WIDTH-1:0] candidate_e,
    input  logic [WIDTH-1:0] totient,
    input  logic             start_key_check,
    output logic             key_valid,
    output logic             done_key_check,
    input  logic [WIDTH-1:0] plaintext,
    input  logic [WIDTH-1:0] modulus,
    output logic [WIDTH-1:0] ciphertext,
    output logic             done_encryption
);
    typedef enum logic [2:0] {IDLE, CHECK, CHECKING, DECIDE, ENCRYPT, COMPLETE} state_t;

    state_t           state;
    logic [WIDTH-1:0] e_q, totient_q, plaintext_q, modulus_q, gcd, power;
    logic             gcd_done, power_done;

    gcd_top_1 #(.WIDTH(WIDTH)) u_gcd (
        .clk, .rst, .A(e_q), .B(totient_q), .go(state == CHECK), .OUT(gcd), .done(gcd_done)
    );

    modular_exponentiation #(.WIDTH(WIDTH)) u_power (
        .clk, .rst, .start(state == DECIDE && key_valid), .base(plaintext_q), .exponent(e_q), .mod_val(modulus_q),
        .result(power), .done(power_done)
    );

    always_ff @(posedge clk)
        if (rst) begin
            state <= IDLE;
            {e_q, totient_q, plaintext_q, modulus_q, key_valid, done_key_check, ciphertext, done_encryption} <= 0;
        end else
            case (state)
                IDLE: begin
                    {key_valid, done_key_check, ciphertext, done_encryption} <= 0;
                    if (start_key_check) begin
                        {e_q, totient_q, plaintext_q, modulus_q} <= {candidate_e, totient, plaintext, modulus};
                        state <= CHECK;
                    end
                end
                CHECK: state <= CHECKING;
                CHECKING:
                    if (gcd_done) begin
                        key_valid <= gcd == 1;
                        done_key_check <= 1;
                        state <= DECIDE;
                    end
                DECIDE:
                    if (key_valid) state <= ENCRYPT;
                    else begin
                        done_encryption <= 1;
                        state <= COMPLETE;
                    end
                ENCRYPT:
                    if (power_done) begin
                        ciphertext <= power;
                        done_encryption <= 1;
                        state <= COMPLETE;
                    end
                default: if (!start_key_check) state <= IDLE;
            endcase
endmodule
